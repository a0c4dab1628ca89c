"""`surefit explain`: files, stdin, exit codes, JSON, bad input."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from pathlib import Path

import pytest

from surefit.cli import run

KNOWN = "ValueError: expected sequence of length 434 at dim 1 (got 512)\n"
FIELDS = {"known", "code", "title", "cause", "evidence", "fix", "does_not_help", "derived"}


def stdin(patch: pytest.MonkeyPatch, content: bytes) -> None:
    patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_a_known_cause_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.txt").write_text(KNOWN, encoding="utf-8")
    assert run(["explain", str(tmp_path / "log.txt")]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("SF601  rows of different lengths were not padded")
    assert all(len(line) <= 100 for line in said.out.splitlines())
    assert said.err == ""


@pytest.mark.parametrize("arguments", [["explain"], ["explain", "-"]])
def test_json_from_stdin(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(monkeypatch, KNOWN.encode())
    assert run([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said) >= FIELDS
    assert said["known"] is True
    assert said["evidence"] == {"line": KNOWN.strip(), "values": {"expected": 434, "found": 512}}
    assert any("deepcopy" in line for line in said["does_not_help"])


def test_an_unknown_cause_exits_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(monkeypatch, b"Traceback (most recent call last):\n  File 'a.py'\nKeyError: 'apple'\n")
    assert run(["explain", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["known"] is False
    assert said["code"] is None
    assert said["evidence"]["line"] == "KeyError: 'apple'"
    assert said["send"]


@pytest.mark.slow
def test_of_a_long_log_the_end_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    filler = "step 1 of 9: all is well\n" * 400_000
    (tmp_path / "log.txt").write_text(filler + KNOWN, encoding="utf-8")
    assert run(["explain", str(tmp_path / "log.txt")]) == 0
    stdin(monkeypatch, (filler + KNOWN).encode())
    assert run(["explain"]) == 0
    assert capsys.readouterr().out.count("SF601") == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b" \n", "is empty"), (b"\x7fELF\0\0", "is not text")],
)
def test_what_is_no_log_is_refused(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_bytes(content)
    assert run(["explain", str(tmp_path / "log")]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.txt", "Cannot read"),
        (".", "is not the folder of a run"),
        ("a\0b", "Cannot read a\\u0000b"),
    ],
)
def test_a_name_that_is_no_log_is_refused(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", name]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"caf\xe9\n" + KNOWN.encode(), KNOWN.encode("utf-16")])
def test_other_encodings_are_read(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_bytes(content)
    assert run(["explain", str(tmp_path / "log")]) == 0
    assert "SF601" in capsys.readouterr().out


def test_a_pipe_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(KNOWN,))
    writer.start()
    assert run(["explain", str(tmp_path / "pipe")]) == 0
    writer.join()
    assert "SF601" in capsys.readouterr().out


def test_closed_stdin_is_empty(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run(["explain"]) == 2
    assert "stdin is empty" in capsys.readouterr().err
