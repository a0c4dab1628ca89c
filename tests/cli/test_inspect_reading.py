"""`surefit inspect` says what was worked out, and reads as it is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opening import written
from surefit.cli import run


def test_what_was_worked_out_is_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "a.tsv", "ham\tgo on then\nspam\twin a prize\nham\tsee you there\n")
    assert run(["inspect", str(path), "--json"]) == 0
    shown = capsys.readouterr()
    assert [column["name"] for column in json.loads(shown.out)["columns"]] == ["label", "text"]
    assert "SF112" in shown.err
    assert run(["inspect", str(path), "--json", "--set", "read.names=[kind, words]"]) == 0
    shown = capsys.readouterr()
    assert [column["name"] for column in json.loads(shown.out)["columns"]] == ["kind", "words"]
    assert run(["inspect", str(path), "--set", "read.nmes=[a, b]"]) == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", '[{"x": 1},\n{"x": '),
        ("a.conll", "a\tO\nb\n"),
        ("a.ts", "@data\n1,x\n"),
        ("a.tsv", "x\ty\n1\n"),
        ("a.txt", b"fine\n\x00\n"),
    ],
)
def test_bad_file_is_one_message_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | bytes
) -> None:
    path = written(tmp_path / name, content)
    assert run(["inspect", str(path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{name}, line 2: " in shown.err
    assert "Traceback" not in shown.err
