"""Law 11: an error says what was expected, what was found, and how to fix it."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import echo_rows, write_jsonl
from surefit.cli import run as command

MISTAKES: dict[str, tuple[list[str], int, tuple[str, ...]]] = {
    "missing file": (["train", "--data", "no.jsonl", "--model", "tiny:llama"], 2, ("no.jsonl",)),
    "unknown task": (
        ["check", "--data", "ok.jsonl", "--model", "tiny:llama", "--task", "stf"],
        2,
        ("stf", "sft"),
    ),
    "unknown key": (
        ["check", "--data", "ok.jsonl", "--model", "tiny:llama", "--set", "weigth_decay=1"],
        2,
        ("weigth_decay", "weight_decay"),
    ),
    "wrong value": (
        ["check", "--data", "ok.jsonl", "--model", "tiny:llama", "--set", "keep=none"],
        2,
        ("keep", "'none'"),
    ),
    "unknown option": (["train", "--dta", "ok.jsonl"], 2, ("--dta",)),
    "unknown architecture": (
        ["check", "--data", "ok.jsonl", "--model", "tiny:lama"],
        2,
        ("lama", "llama"),
    ),
    "unsuitable model": (
        ["check", "--data", "ok.jsonl", "--model", "tiny:vit", "--task", "sft"],
        1,
        ("vit", "SF301"),
    ),
    "no run": (["evaluate", "nowhere"], 2, ("nowhere",)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_gets_a_message_and_an_exit_code(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, code, parts = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "ok.jsonl", echo_rows(20))
    assert command(arguments) == code
    said = "".join(capsys.readouterr())
    assert "Traceback" not in said
    assert "fix:" in said
    for part in parts:
        assert part in said
    assert [path.name for path in tmp_path.iterdir()] == ["ok.jsonl"]
