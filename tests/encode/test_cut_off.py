"""Encoding that was cut off goes on where it was, to the same bytes."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest

import surefit
from builders import echo_rows
from surefit import atomic
from surefit.encode import encode_table as encode
from surefit.encode import encoded_chunks
from surefit.encode.row_encoder import RowEncoder

ROWS: list[dict[str, Any]] = echo_rows(700)
ROWS[5] = ROWS[300] = {"prompt": "", "completion": "x"}  # dropped, with a remark


class PowerCut(BaseException):
    """Neither an error nor a signal that anyone handles."""


def _check(cache: Path, **options: Any) -> Any:
    return surefit.check(data=ROWS, model="tiny:llama", eval_share=0.0, cache=str(cache), **options)


def _stores(cache: Path) -> dict[str, bytes]:
    files = (cache / "encoded").rglob("*")
    return {str(path.relative_to(cache)): path.read_bytes() for path in files if path.is_file()}


def test_it_goes_on_from_the_last_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _check(tmp_path / "whole")
    monkeypatch.setattr(encode, "MARK_SECONDS", -1.0)
    monkeypatch.setattr(encoded_chunks, "CHUNK_ROWS", 100)
    begin, count = RowEncoder.begin, 0

    def cut(*given: Any) -> Any:
        nonlocal count
        count += 1
        if count == 650:
            raise PowerCut
        return begin(*given)

    monkeypatch.setattr(RowEncoder, "begin", cut)
    with pytest.raises(PowerCut):
        _check(tmp_path / "cut")
    assert [path.suffix for path in (tmp_path / "cut/encoded").iterdir() if path.is_dir()] == [
        ".half"
    ]
    plan = _check(tmp_path / "cut")
    assert 650 < count < 650 + 700
    assert _stores(tmp_path / "cut") == _stores(tmp_path / "whole")
    assert plan.findings == whole.findings
    assert plan.ledger == whole.ledger


def _fail_in(path: Path) -> None:
    with atomic.resumable_folder(path) as folder:
        (folder / "x").write_text("x")
        raise ZeroDivisionError


def test_after_an_error_it_begins_anew(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        _fail_in(tmp_path / "store")
    with atomic.resumable_folder(tmp_path / "store") as folder:
        assert list(folder.iterdir()) == []


def test_a_folder_that_another_process_fills_is_left_alone(tmp_path: Path) -> None:
    with (tmp_path / ".store.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with atomic.resumable_folder(tmp_path / "store") as folder:
            assert folder.suffix != ".half"
            (folder / "x").write_text("mine")
    assert (tmp_path / "store" / "x").read_text() == "mine"
