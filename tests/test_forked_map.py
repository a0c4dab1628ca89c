"""Work shared among processes gives what one process gives, whatever befalls the others."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import surefit
from builders import echo_rows
from surefit import forked_map as shared
from surefit.data.open_data import open_table
from surefit.data.row_parts import RowParts
from surefit.forked_map import (
    CHILD_BYTES,
    MEMORY_SHARE,
    forked_map,
    limit_children,
    num_children,
    num_that_fit,
)
from surefit.memory import limit
from surefit.memory.limit import free_for_children

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")
PARENT = os.getpid()
PATIENCE_SECONDS = 240.0
"""More than the slowest machine needs."""


def in_child() -> bool:
    return os.getpid() != PARENT


def dies(number: int) -> int:
    if number == 7 and in_child():
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def waits_for_ever(number: int) -> int:
    while number == 7 and in_child():
        time.sleep(1)
    return number


def fails(number: int) -> int:
    if number == 7 and in_child():
        raise ValueError("only here")
    return number


def cannot_be_sent(number: int) -> Any:
    return (lambda: number) if number == 7 and in_child() else number


@pytest.mark.parametrize("make", [dies, waits_for_ever, fails, cannot_be_sent])
def test_what_a_child_does_not_do_is_done_here(
    make: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PARENT", os.getpid())
    monkeypatch.setattr(shared, "STALL_SECONDS", 2.0)
    with forked_map(make, range(40), children=2) as made:
        assert list(made) == list(range(40))


def test_children_share_the_work_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with forked_map(lambda number: (number, os.getpid()), range(40), children=2) as made:
        found = list(made)
        children = {pid for _, pid in found}
    assert [number for number, _ in found] == list(range(40))
    assert os.getpid() not in children
    for pid in children:
        _wait_for_end(pid)


def test_an_error_is_raised_as_without_children() -> None:
    def make(number: int) -> int:
        return 1 // (number - 5)

    with (
        pytest.raises(ZeroDivisionError),
        forked_map(make, range(40), children=2) as made,
    ):
        list(made)


def test_no_child_outlives_its_parent(tmp_path: Path) -> None:
    script = f"""
import os, pathlib, sys, time
from surefit.forked_map import forked_map
def make(number):
    pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch()
    time.sleep(600)
with forked_map(make, range(4), children=2) as made:
    next(made)
"""
    pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", script])
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(list(tmp_path.iterdir())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for child in tmp_path.iterdir():
        _wait_for_end(int(child.name))


def _wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while Path(f"/proc/{pid}").exists() and not _is_zombie(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_zombie(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


@pytest.mark.parametrize("options", [{}, {"augmentation_factor": 2}, {"max_seq_length": 12}])
def test_encoded_rows_are_those_of_one_process(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, Any]] = echo_rows(700)
    rows[5] = rows[300] = {"prompt": "", "completion": "x"}
    plans, stores = [], []
    for fewest in (10**9, 100):
        monkeypatch.setattr(shared, "FEWEST_ROWS", fewest)
        cache = tmp_path / str(fewest)
        plans.append(surefit.check(data=rows, model="tiny:llama", cache=str(cache), **options))
        files = (cache / "encoded").rglob("*")
        written = (p for p in files if p.is_file() and p.name != ".surefit")
        stores.append({p.relative_to(cache): p.read_bytes() for p in written})
    assert plans[0].findings == plans[1].findings
    assert plans[0].ledger == plans[1].ledger
    assert stores[0] == stores[1]


def test_hashes_are_those_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_table(echo_rows(5000))
    parts = RowParts({"prompt": "prompt", "answer": "completion"}, ("answer",))
    alone = parts.hash_some(table)
    monkeypatch.setattr(shared, "FEWEST_ROWS", 100)
    together = parts.hash_some(table)
    assert all((one == other).all() for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize("wanted", [2, 8, 64])
@pytest.mark.parametrize("work", [1, 24_000_000, 500_000_000])
@pytest.mark.parametrize("free", [0, 30_000_000, 700_000_000, 10**12])
def test_children_fit_into_the_memory(wanted: int, work: int, free: int) -> None:
    found = num_that_fit(wanted, free, work)
    each = CHILD_BYTES + work
    assert found * each <= MEMORY_SHARE * free
    assert found == wanted or found != 1
    assert found == wanted or (found or 1) * each + each > MEMORY_SHARE * free


def test_children_follow_from_max_memory_gb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that has 0.3 GB itself, with 8 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(limit, "_host_limit", lambda groups: limit.Limit(10**12, "memory"))
    monkeypatch.setattr(limit, "anonymous_bytes", lambda: 300_000_000)
    counts = {}
    for gb in (0.3, 0.4, 1.0, 16.0):
        with limit_children(partial(free_for_children, gb)):
            counts[gb] = num_children(10**6, work_bytes=60_000_000)
    assert counts == {0.3: 0, 0.4: 0, 1.0: 4, 16.0: 8}
