"""What a failed process tells the others; for real runs see training/test_failed_process.py."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from surefit.errors import RunFailedError
from surefit.peers import watchdog
from surefit.peers.told_failure import Failure, FailureBoard, as_failure
from surefit.peers.watchdog import Watchdog


def test_the_first_failure_is_the_one_that_is_reported(store: Any) -> None:
    board, other = (FailureBoard(store.clone(), "run", 3) for _ in range(2))
    assert board.first() is None
    failed = RunFailedError(("Training failed", "cause: none"), "Mend it.")
    board.post(as_failure(failed, 2, "far"))
    other.post(as_failure(ValueError("later"), 1, "near"))
    first = other.first()
    assert first == Failure(2, "far", ("Training failed", "cause: none"), "Mend it.", 1)
    assert first.message == ("Process 2 of host far: Training failed", "cause: none")
    assert board.of(1) == Failure(1, "near", ("ValueError: later",))
    assert FailureBoard(store.clone(), "next run", 3).first() is None


def test_a_failed_process_waits_until_process_0_knows(store: Any) -> None:
    board, other = (FailureBoard(store.clone(), "run", 2) for _ in range(2))
    board.post(Failure(1, "here", ("bad",)))
    assert not board.wait_until_heard(1, seconds=0.2)
    threading.Timer(0.2, lambda: other.note_heard(0)).start()
    began = time.monotonic()
    assert board.wait_until_heard(1, seconds=10)
    assert time.monotonic() - began < 5


def test_a_process_that_waits_for_a_failed_one_is_ended(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    heard: list[Failure] = []

    def end(failure: Failure, rank: int) -> None:
        heard.append(failure)
        ended.set()

    monkeypatch.setattr(watchdog, "end_after", end)
    monkeypatch.setattr(watchdog, "waits_for_others", lambda thread: True)
    monkeypatch.setattr(watchdog, "WAITING_SECONDS", 0.3)
    dog = Watchdog(store.clone(), 0, 2)
    dog.wake(None)
    dog.announce()
    Watchdog(store.clone(), 1, 2).announce()
    dog.start()
    failure = Failure(1, "here", ("bad",))
    dog.open_board(store.clone()).post(failure)
    try:
        assert ended.wait(20)
    finally:
        dog.stop()
    assert heard[0] == failure
    assert dog.failure == failure
