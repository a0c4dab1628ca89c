"""What the commands print: units, Average F1 Score; --quiet: errors alone; --verbose: all notes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from builders import echo_rows, feature_rows, save_ragged, sentiment_rows, write_jsonl
from surefit.cli import run as command
from surefit.cli import summary_lines
from surefit.cli.display import Display
from surefit.plan.make_plan import make_plan
from surefit.request import make_request


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
    assert "per epoch 54 rows batches 7 per epoch, up to 8 rows steps 7 per epoch, 21 in total" in (
        shown
    )
    assert "token" not in shown
    assert command(["train", *options]) == 0
    said = capsys.readouterr().err
    assert re.search(r"step 1 of 21: .* [\d,]+ rows/s", said)
    assert "token" not in said
    page = (folder / "run" / "report.html").read_text("utf-8")
    body = page[page.index("<h2>Data</h2>") :]
    assert "<td>per training epoch</td><td>54 rows</td>" in body
    assert "token" not in body
    assert '"loss per row"' in page


def test_feature_sequences_have_time_steps_and_rows_per_second(folder: Path, capsys: Any) -> None:
    save_ragged(folder / "motions.npz", feature_rows(60))
    options = ["--data", "motions.npz", "--model", "tiny:bert", "--output", "run"]
    assert command(["train", *options, "--max-steps", "2"]) == 0
    said = words(capsys.readouterr().err)
    assert re.search(
        r"per epoch 54 rows, \d+ time steps batches 7 per epoch, up to 8 rows × ", said
    )
    assert re.search(r"step 2 of 2: .* [\d,]+ rows/s", said)
    assert "token" not in said


def test_texts_with_a_label_have_tokens_but_none_is_labelled(folder: Path, capsys: Any) -> None:
    write_jsonl(folder / "a.jsonl", sentiment_rows(40))
    assert command(["check", "--data", "a.jsonl", "--model", "tiny:bert"]) == 0
    shown = words(capsys.readouterr().out)
    assert re.search(r"per epoch 36 rows, [\d,]+ tokens batches", shown)
    assert "labelled" not in shown


def test_average_f1_score_is_printed_once_per_epoch(folder: Path) -> None:
    write_jsonl(folder / "a.jsonl", echo_rows(60))
    settings = {"data": "a.jsonl", "model": "tiny:llama", "epochs": 2, "eval_every": 3}
    plan = make_plan(make_request(settings))
    assert plan.job is not None
    assert plan.job.batches.steps_per_epoch == 7
    display = Display()
    printed: list[str] = []
    display.console.print = lambda text: printed.append(text.plain)  # type: ignore[method-assign]
    display.expect(plan)
    for step in (0, 3, 6, 7, 9, 12, 14):  # step 0: before training, of no epoch
        metrics = {"loss": 2.0, "token_f1": 0.25}
        epoch = -(-step // 7)
        display.observe({"event": "eval", "step": step, "epoch": epoch, "metrics": metrics})
    assert all("token_f1 0.2500" in line for line in printed)
    marked = [line for line in printed if "token_f1 0.2500  Average F1 Score 0.2500" in line]
    assert [line.split("  ")[1] for line in marked] == ["step 7", "step 14"]
    assert sum(line.count("Average F1 Score") for line in printed) == 2


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
