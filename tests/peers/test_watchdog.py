"""Who is blamed, and who is not; threads of real processes in test_stalls.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from surefit.peers import watchdog
from surefit.peers.signs_of_life import NOTES, Activity, Notes, describe_place, waits_for_others
from surefit.peers.watchdog import Beat, Verdict, Watchdog, judge


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Verdict]]:
    """What processes were ended for; they live on."""
    heard: list[Verdict] = []

    def end(verdict: Verdict, rank: int, host: str) -> None:
        heard.append(verdict)

    monkeypatch.setattr(watchdog, "end_process", end)
    return heard


def watch(store: Any, rank: int, seconds: float) -> Watchdog:
    made = Watchdog(store.clone(), rank, 2)
    made.asked_seconds = seconds
    made.announce()
    return made


def until(condition: Any, seconds: float = 20) -> bool:
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.processes
def test_a_silent_process_is_named_with_its_host_and_last_stage(
    store: Any, ended: list[Verdict]
) -> None:
    first = watch(store, 0, 1.0)
    silent = Beat(1, "node-7", 1234, "training, step 12", tick=5)
    store.set(first._key(1), watchdog.json.dumps(vars(silent)))
    first.start()
    try:
        assert until(lambda: ended)
    finally:
        first.stop()
    assert "Process 1 of host node-7 has not answered for" in ended[0].message
    assert "training, step 12" in ended[0].message
    assert (ended[0].rank, ended[0].pid, ended[0].is_silent) == (1, 1234, True)


@pytest.mark.processes
def test_processes_that_beat_are_left_alone(store: Any, ended: list[Verdict]) -> None:
    pair = [watch(store, rank, 1.0) for rank in (0, 1)]
    for each in pair:
        each.start()
    stop = time.monotonic() + 3
    while time.monotonic() < stop:  # both finish something now and then
        NOTES.note()
        time.sleep(0.1)
    assert not ended
    pair[1].stop()  # it has ended as it should, and is not missed
    stop = time.monotonic() + 2.5
    while time.monotonic() < stop:
        NOTES.note()
        time.sleep(0.1)
    assert not ended
    pair[0].stop()


@pytest.mark.processes
def test_a_verdict_of_process_0_ends_the_others(store: Any, ended: list[Verdict]) -> None:
    first, second = [watch(store, rank, 30.0) for rank in (0, 1)]
    second.start()
    first.verdict = Verdict(1, "Process 1 is stuck.")
    first._send()
    try:
        assert until(lambda: ended)
    finally:
        second.stop()
    assert ended[0] == first.verdict


@pytest.mark.processes
def test_a_store_that_is_gone_is_named_by_its_address(
    ended: list[Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")

    class Gone:
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("Broken pipe")

    lonely = Watchdog(Gone(), 1, 2)
    lonely.asked_seconds = 1.0
    lonely.start()
    try:
        assert until(lambda: ended)
    finally:
        lonely.stop()
    assert "The store of the run at 10.0.0.1:29500 has not answered" in ended[0].message
    assert ended[0].is_store_lost


def test_who_is_blamed() -> None:
    def beats(*states: str, quiet: float = 99.0) -> dict[int, Beat]:
        return {
            rank: Beat(rank, "h", doing=f"training, step {rank}", state=state, quiet_seconds=quiet)
            for rank, state in enumerate(states)
        }

    quiet = {0: 0.0, 1: 0.0, 2: 0.0}
    assert judge(beats("waits", "works", "waits"), quiet, 60, 0) is None  # slow, and alive
    assert judge(beats("waits", "rests"), {**quiet, 1: 500.0}, 60, 0) is None  # between two runs
    assert judge(beats("waits", "ended", "works"), {**quiet, 1: 500.0}, 60, 0) is None
    stuck = judge(beats("waits", "stuck", "waits"), quiet, 60, 0)
    assert stuck is not None
    assert stuck.rank == 1
    assert "Process 1 of host h is stuck: for 99 s" in stuck.message
    all_wait = judge(beats("waits", "waits"), quiet, 60, 0)
    assert all_wait is not None
    assert "waited for each other for 99 s" in all_wait.message
    assert judge(beats("waits", "waits", quiet=59.0), quiet, 60, 0) is None
    assert judge({0: Beat(0)}, {0: 61.0}, 60, 1) is not None  # process 0, judged by process 1
    assert judge(beats("works", "works"), {0: 61.0, 1: 61.0}, float("inf"), 0) is None


def test_time_in_which_this_process_did_not_run_does_not_count(store: Any) -> None:
    first = watch(store, 0, 10.0)
    watch(store, 1, 10.0)
    first._hear(0.5)
    first._hear(0.5)
    assert first._silence == [1.0, 1.0]
    assert first.verdict is None
    assert first.interval_seconds == 0.5  # the threads count two of them at most


def test_between_two_runs_nobody_is_watched(store: Any) -> None:
    made = watch(store, 0, 1.0)
    made._quiet_seconds = 1e6
    made.rest()
    made._look_at_self(1.0)
    assert made._beat.state == "rests"
    made.wake(2.0)
    made._look_at_self(1.0)
    assert made._beat.state == "works"
    assert made._quiet_seconds <= 1.0
    assert made.limit_seconds == 2.0


def test_the_default_limit_follows_the_longest_step(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes()
    monkeypatch.setattr(watchdog, "NOTES", notes)
    made = watch(store, 0, 0)
    assert made.limit_seconds == float("inf")  # stall_seconds=0
    made.asked_seconds = None
    assert made.limit_seconds == 300
    notes.longest_step_seconds = 60
    assert made.limit_seconds == 1200


def test_a_step_is_measured_from_the_beginning_of_the_one_before() -> None:
    notes = Notes()
    notes.note_step(1)
    time.sleep(0.05)
    notes.note_step(2)
    notes.note_step(9)  # resumed elsewhere: no step of eight
    assert 0.05 <= notes.longest_step_seconds < 5
    assert notes.describe() == "training, step 9"
    notes.restart()
    assert notes.describe() == "starting"
    assert not notes.is_training


@pytest.mark.parametrize("kind", ["lock", "cpu", "polling"])
def test_stuck_differs_from_slow(kind: str) -> None:
    lock, end = threading.Lock(), threading.Event()
    lock.acquire()

    def work() -> None:
        if kind == "lock":
            lock.acquire()
        while not end.is_set():
            if kind == "polling":
                time.sleep(0.01)  # as a slow connection wakes it

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    activity = Activity(thread)
    found = False
    for _ in range(6):
        time.sleep(0.3)
        found = activity.has_worked()
    end.set()
    lock.release()
    thread.join()
    # Other threads of the test process may work, too; a stuck one must look idle only alone.
    assert found or kind == "lock"


def test_the_line_of_a_thread_and_what_it_waits_in() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, daemon=True)
    thread.start()
    assert "threading.py" in describe_place(thread)
    assert not waits_for_others(thread)
    end.set()
    thread.join()
    place = "import time\ndef all_reduce(): time.sleep(30)\nall_reduce()"
    code = compile(place, "/x/site-packages/torch/distributed/distributed_c10d.py", "exec")
    thread = threading.Thread(target=exec, args=(code, {}), daemon=True)
    thread.start()
    assert until(lambda: waits_for_others(thread))
