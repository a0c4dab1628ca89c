"""What the commands print: units, blocks, progress; --quiet: errors alone; --verbose: all notes."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from builders import feature_rows, save_ragged, sentiment_rows, write_jsonl
from surefit.cli import display as shown
from surefit.cli import run as command
from surefit.cli import summary_lines
from surefit.cli.display import Display, show_line
from surefit.run.events import Outcome


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(text: str) -> str:
    return " ".join(text.split())


def table(path: Path) -> None:
    lines = [f"{n % 7},{n % 5},{'yes' if n % 3 else 'no'}" for n in range(60)]
    path.write_text("\n".join(["a,b,label", *lines]) + "\n")


def test_table_has_rows_and_no_tokens(folder: Path, capsys: Any) -> None:
    table(folder / "table.csv")
    options = ["--data", "table.csv", "--model", "tiny:mlp", "--output", "run"]
    assert command(["check", *options]) == 0
    shown = words(capsys.readouterr().out)
    assert "rows 60: 54 training, 6 validation, 0 dropped, 0 truncated" in shown
    assert "per epoch 54 rows baseline" in shown
    assert "batches 7 per epoch, up to 8 rows steps 7 per epoch, 21 in total" in shown
    assert "token" not in shown
    assert command(["train", *options]) == 0
    said = capsys.readouterr().err
    assert re.search(r"step 1 of 21: .* [\d,]+ rows/s", said)
    assert "token" not in said
    page = (folder / "run" / "report.html").read_text("utf-8")
    body = page[page.index("<h2>Data</h2>") :].split("</section>")[0]
    assert "<td>per training epoch</td><td>54 rows</td>" in body
    assert "token" not in body
    assert '"loss per row"' in page


def test_feature_sequences_have_time_steps_and_rows_per_second(folder: Path, capsys: Any) -> None:
    save_ragged(folder / "motions.npz", feature_rows(60))
    options = ["--data", "motions.npz", "--model", "tiny:bert", "--output", "run"]
    assert command(["train", *options, "--max-steps", "2"]) == 0
    said = words(capsys.readouterr().err)
    assert re.search(r"per epoch 54 rows, \d+ time steps ", said)
    assert "batches 7 per epoch, up to 8 rows × " in said
    assert re.search(r"step 2 of 2: .* [\d,]+ rows/s", said)
    assert "token" not in said


def test_texts_with_a_label_have_tokens_but_none_is_labelled(folder: Path, capsys: Any) -> None:
    write_jsonl(folder / "a.jsonl", sentiment_rows(40))
    assert command(["check", "--data", "a.jsonl", "--model", "tiny:bert"]) == 0
    shown = words(capsys.readouterr().out)
    assert re.search(r"per epoch 36 rows, [\d,]+ tokens ", shown)
    assert "labelled" not in shown


def test_a_number_has_one_name(folder: Path) -> None:
    display = Display()
    printed: list[str] = []
    display.console.print = lambda text: printed.append(text.plain)  # type: ignore[method-assign]
    for step in (0, 7):
        metrics = {"loss": 2.0, "token_f1": 0.25}
        display.observe({"event": "eval", "step": step, "epoch": 1, "metrics": metrics})
    assert printed[0] == "before training  eval loss 2.0000  token_f1 0.2500"
    assert printed[1] == "epoch 1  step 7  eval loss 2.0000  token_f1 0.2500"


def test_what_needs_action_comes_before_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(Path("rows.jsonl"), [*ROWS, {"text": "word 0", "label": "b"}])
    assert command(["check", "--data", "rows.jsonl", *OPTIONS]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line for line in lines if line in ("Data", "Model", "Batches", "Memory and time")]
    assert titles == ["Data", "Model", "Batches", "Memory and time"]
    assert lines[0] == "ready to train"
    assert lines[1].startswith("warning SF223")
    assert lines.index("Data") > 2
    assert not any(line.startswith(("rehearsal", "disk")) for line in lines)


def test_lines_of_a_terminal_are_wrapped_below_their_first() -> None:
    console = Console(file=io.StringIO(), width=60, force_terminal=True, no_color=True)
    show_line("note", "word " * 30, console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].startswith("note      word")
    assert all(line.startswith("          word") for line in lines[1:])
    assert max(map(len, lines)) <= 60


def test_a_long_stage_reports_itself_and_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(shown, "PLAIN_SECONDS", 10.0)
    monkeypatch.setattr(shown.time, "monotonic", lambda: clock[0])
    with Display() as display:
        display.progress("opening the model", 0, 1)
        clock[0] = 4.0
        display.progress("opening the model", 1, 1)
        display.progress("encoding rows", 0, 100)
        clock[0] = 24.0
        display.progress("encoding rows", 25, 100)
        clock[0] = 25.0
        display.progress("encoding rows", 30, 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["encoding rows: 25 of 100, 1 min 0 s left"]


def test_the_result_goes_from_before_to_after_to_the_baseline() -> None:
    found = [Outcome("loss", 1.5, 0.5, 0.75, "mean"), Outcome("rouge_l", None, 0.25, None)]
    assert [*summary_lines.outcome_lines(found)] == [
        "metric          before → after    best baseline",
        "loss            1.5000 → 0.5      0.7500 (mean)",
        "rouge_l         0.25",
    ]


ROWS = [{"text": f"word {n}", "label": "ab"[n % 2]} for n in range(24)]
OPTIONS = ("--model", "tiny:bert", "--max-steps", "2", "--lr", "0.001", "--output", "run")


def test_a_quiet_run_prints_its_result_alone(capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(Path("rows.jsonl"), ROWS)
    assert command(["train", "--quiet", "--data", "rows.jsonl", *OPTIONS]) == 0
    printed = capsys.readouterr()
    assert "accuracy" in printed.out
    assert printed.err == ""


@pytest.mark.parametrize("name", ["check", "train"])
def test_a_quiet_command_prints_its_errors(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(Path("bad.jsonl"), [{**row, "label": "a"} for row in ROWS])
    assert command([name, "--quiet", "--data", "bad.jsonl", *OPTIONS]) == 1
    lines = "".join(capsys.readouterr()).splitlines()
    assert lines[0].startswith("error")
    assert not any(line.startswith(("task", "rows", "note", "warning")) for line in lines)


def test_all_notes_are_verbose(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary_lines, "SHOWN_NOTES", 0)
    rows = [{"features": [[n / 24.0]] * (2 + n % 5), "label": "ab"[n % 2]} for n in range(24)]
    write_jsonl(Path("features.jsonl"), rows)
    counts = {}
    for level in ("", "--verbose"):
        options = [level] if level else []
        assert command(["check", *options, "--data", "features.jsonl", *OPTIONS]) == 0
        notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note")]
        counts[level] = len(notes), sum("more: --verbose" in line for line in notes)
    assert counts[""] == (1, 1)
    assert counts["--verbose"][0] >= 1
    assert counts["--verbose"][1] == 0
