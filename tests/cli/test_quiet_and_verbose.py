"""`--quiet` prints errors and the result; `--verbose` prints every note of the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import write_jsonl
from surefit.cli import run as command
from surefit.cli import summary_lines


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"word {n}", "label": "ab"[n % 2]} for n in range(24)]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    write_jsonl(tmp_path / "bad.jsonl", [{**row, "label": "a"} for row in rows])


OPTIONS = ("--model", "tiny:bert", "--max-steps", "2", "--lr", "0.001", "--output", "run")


def test_a_quiet_run_prints_its_result_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["train", "--quiet", "--data", "rows.jsonl", *OPTIONS]) == 0
    printed = capsys.readouterr()
    assert "accuracy" in printed.out
    assert printed.err == ""


@pytest.mark.parametrize("name", ["check", "train"])
def test_a_quiet_command_prints_its_errors(name: str, capsys: pytest.CaptureFixture[str]) -> None:
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
