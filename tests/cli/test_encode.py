"""`surefit encode` puts the rows into the cache, where `check` and `train` find them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders import echo_rows, write_jsonl
from surefit.cli import run


def written(cache: Path) -> dict[Path, int]:
    """When each file of the encoded rows was written; the digests are touched at every use."""
    files = [path for path in (cache / "encoded").glob("*/*") if path.name != "digests.json"]
    return {path: path.stat().st_mtime_ns for path in files}


def test_encoded_rows_are_found_by_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFIT_CACHE", str(tmp_path / "cache"))
    rows = write_jsonl(tmp_path / "rows.jsonl", echo_rows(30))
    asked = ["--data", str(rows), "--model", "tiny:llama", "--json"]
    assert run(["encode", *asked, "--processes", "2"]) == 0
    encoded = json.loads(capsys.readouterr().out)
    assert encoded["ok"]
    assert encoded["ledger"]["train_rows"] == 27
    assert encoded["memory"]["predicted_peak_bytes"] is None  # nothing is planned beyond the rows
    entries = written(tmp_path / "cache")
    assert entries
    assert run(["check", *asked]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["data_key"] == encoded["data_key"]
    assert written(tmp_path / "cache") == entries


def test_rows_that_cannot_be_trained_on_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "a", "response": ""}] * 20)
    assert run(["encode", "--data", str(rows), "--model", "tiny:llama"]) == 1
    assert "cannot train" in capsys.readouterr().out
    assert run(["encode", "--resume", "run"]) == 2
