"""Who is called lost, and who is not; real kills in test_device_wait.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from surefit.peers import watchdog
from surefit.peers.lost_process import as_lost, is_gone, process_space
from surefit.peers.told_failure import Failure
from surefit.peers.watchdog import Beat, Watchdog, end_after


@pytest.fixture(scope="module")
def zombie() -> Iterator[int]:
    """A process that has ended, which its parent has not noticed."""
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()  # until it ends
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    yield child.pid
    child.wait()


def test_a_process_is_gone_when_it_has_ended(zombie: int) -> None:
    assert is_gone(zombie)
    assert not is_gone(os.getpid())
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert is_gone(ended.pid)


def hear(store: Any, zombie: int, waits: bool = True, rounds: int = 8, **beat: Any) -> Any:
    """What a process hears that waits, or not, beside one with this beat."""
    dog = Watchdog(store.clone(), 0, 2)
    dog.announce()
    own: dict[str, Any] = {"pid": zombie, "host": "here", "doing": "training, step 3"}
    other = Beat(1, **{**own, "space": process_space(), **beat})
    store.set(dog._key(1), json.dumps(asdict(other)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(watchdog, "waits_for_others", lambda thread: waits)
        for _ in range(rounds):
            dog._hear(1.0)
    return dog.failure


def test_a_killed_process_is_told_to_all_by_one_that_waits_for_it(store: Any, zombie: int) -> None:
    failure = hear(store, zombie)
    assert failure == as_lost(1, "here", "training, step 3")
    assert failure.message == (
        "Process 1 of host here: it was killed, or has crashed, and could not tell why. It was "
        "last training, step 3.",
    )


@pytest.mark.parametrize(
    "healthy",
    [
        {"pid": os.getpid()},  # alive, slow or stopped
        {"state": "ended"},
        {"state": "rests"},
        {"space": "another container"},  # whose processes have numbers of their own
        {"waits": False},  # this one works: a checkpoint may be half written
        {"rounds": 5},  # connections may yet close
    ],
)
def test_others_are_not_called_lost(store: Any, zombie: int, healthy: dict[str, Any]) -> None:
    assert hear(store, zombie, **healthy) is None


@pytest.mark.parametrize(
    ("lost", "failed", "printing"), [(True, 0, 1), (True, 2, 0), (False, 0, 0), (False, 2, 0)]
)
def test_one_process_prints_it(
    monkeypatch: pytest.MonkeyPatch, lost: bool, failed: int, printing: int
) -> None:
    said: list[bytes] = []
    monkeypatch.setattr(watchdog.os, "write", lambda place, text: said.append(text))
    monkeypatch.setattr(watchdog.os, "_exit", lambda code: None)
    for rank in range(4):
        end_after(Failure(failed, "here", ("bad",), is_lost=lost), rank)
        assert len(said) == (rank >= printing)
