"""Where a process waits for its device, with a device that is done when the test says so.

NCCL and a GPU are stood in for by an Event of the test; real processes are real.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peer_processes import start_two

import surefit
from builders import MeanPool, feature_rows
from surefit.peers import watchdog
from surefit.peers.device_wait import wait_for_devices
from surefit.peers.signs_of_life import NOTES, waits_for_devices, waits_for_others
from surefit.peers.watchdog import Watchdog, judge
from surefit.training import engine, loop, step_gradients


def accelerator(kind: str, num_processes: int, **more: Any) -> Any:
    return SimpleNamespace(device=torch.device(kind), num_processes=num_processes, **more)


def fake_event(is_done: Callable[[], bool]) -> Any:
    return lambda device: SimpleNamespace(record=lambda: None, query=is_done)


@pytest.mark.parametrize(("kind", "num"), [("cpu", 1), ("cpu", 8), ("cuda", 1)])
def test_a_cpu_and_a_single_process_wait_for_nothing(
    monkeypatch: pytest.MonkeyPatch, kind: str, num: int
) -> None:
    monkeypatch.setattr(torch, "Event", None)
    made = accelerator(kind, num)
    began = time.perf_counter()
    for _ in range(1000):
        wait_for_devices(made)
    assert time.perf_counter() - began < 0.1  # a step takes milliseconds; this is under 100 us


def test_the_watchdog_knows_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    monkeypatch.setattr(torch, "Event", fake_event(done.is_set))
    made = accelerator("cuda", 2)
    thread = threading.Thread(target=wait_for_devices, args=(made,), daemon=True)
    thread.start()
    seen = []
    for _ in range(200):
        seen.append((waits_for_others(thread), waits_for_devices(thread)))
        time.sleep(0.005)
    assert seen.count((True, True)) > 100  # not while it asks the Event of this test
    done.set()
    thread.join(5)
    assert not thread.is_alive()
    assert not waits_for_devices(threading.current_thread())


def test_signals_are_heard_while_a_process_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    monkeypatch.setattr(torch, "Event", fake_event(lambda: bool(heard)))
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        wait_for_devices(accelerator("cuda", 2))
    finally:
        timer.join()
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


class Later:
    """A result of a collective that notes when it is read."""

    def __init__(self, order: list[str]) -> None:
        self.order = order

    def __float__(self) -> float:
        self.order.append("read")
        return 1.0

    def tolist(self) -> list[float]:
        return [float(self)] * 3

    def cpu(self) -> float:
        return float(self)


@pytest.mark.parametrize("place", [step_gradients, loop, engine])
def test_a_result_of_all_processes_is_waited_for_and_then_read(
    monkeypatch: pytest.MonkeyPatch, place: Any
) -> None:
    order: list[str] = []
    monkeypatch.setattr(place, "wait_for_devices", lambda each: order.append("wait"))
    made = accelerator(
        "cpu", 2, process_index=0, reduce=lambda tensor, reduction: Later(order), scaler=None
    )
    whole = engine.Engine(made, None, None, None)
    if place is step_gradients:
        step_gradients._sum_over_processes(whole, 1.0)
    elif place is loop:
        loop._across(made, 1.0, 0.0, False)
    else:
        whole.group.reduce(torch.ones(1))
    assert order == ["wait", "read"]


def test_the_losses_of_a_step_are_read_after_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    plain = torch.Tensor.__float__

    def read(tensor: torch.Tensor) -> float:
        order.append("read")
        return plain(tensor)

    inner = loop.add_gradients

    def step(*given: Any) -> Any:
        order.append("step")
        with monkeypatch.context() as patched:
            patched.setattr(torch.Tensor, "__float__", read)
            return inner(*given)

    monkeypatch.setattr(loop, "add_gradients", step)
    monkeypatch.setattr(step_gradients, "wait_for_devices", lambda each: order.append("wait"))
    options: dict[str, Any] = {"data": feature_rows(40), "batch_size": 4, "max_steps": 2}
    surefit.train(model=MeanPool(), output=str(tmp_path / "run"), rehearse=False, **options)
    assert order == ["step", "wait", "read"] * 2


def test_a_busy_process_that_waits_for_its_device_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of NCCL keep a processor busy; that is no sign of life."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")

    def beat_of(rank: int, waits: bool) -> Any:
        dog = Watchdog(None, rank, 2)
        dog.asked_seconds = 10.0
        monkeypatch.setattr(dog._activity, "has_worked", lambda: True)
        monkeypatch.setattr(watchdog, "waits_for_others", lambda thread: True)
        monkeypatch.setattr(watchdog, "waits_for_devices", lambda thread: waits)
        NOTES.note()
        for _ in range(13):
            dog._look_at_self(1.0)
        return dog._beat

    silence = {0: 0.0, 1: 0.0}
    waiting = {rank: beat_of(rank, waits=True) for rank in (0, 1)}
    verdict = judge(waiting, silence, 10.0, 0)
    assert verdict is not None
    assert "All processes have waited for each other for 12 s" in verdict.message
    busy = {0: waiting[0], 1: beat_of(1, waits=False)}  # as in the backward pass of a CPU
    assert judge(busy, silence, 10.0, 0) is None


PEER = """
import os, signal, sys, threading, time
from types import SimpleNamespace
import torch
from surefit.peers.device_wait import wait_for_devices
from surefit.peers.signs_of_life import NOTES
from surefit.processes import gather, set_stall_seconds, watched_run

limit, kind, culprit = float(sys.argv[1]), sys.argv[2], sys.argv[3]

def spin():
    while True:
        pass

def wait():  # as for a collective of NCCL that never ends, with its busy thread
    threading.Thread(target=spin, daemon=True).start()
    torch.Event = lambda device: SimpleNamespace(record=lambda: None, query=lambda: False)
    wait_for_devices(SimpleNamespace(device=torch.device("cuda"), num_processes=2))

set_stall_seconds(limit)
with watched_run("runs/here"):
    gather(0)
    NOTES.note_step(7)
    if os.environ["RANK"] == culprit:
        time.sleep(2.5)  # a beat with the step
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "fail":
            raise ValueError("no luck")
    wait()
"""


def meet(folder: Path, limit: float, kind: str, culprit: int) -> tuple[float, list[Any]]:
    """How long two processes took to end, and exit code and words of each."""
    started = start_two(folder, PEER, limit, kind, culprit)
    began = time.monotonic()
    try:
        said = [child.communicate(timeout=120)[1] for child in started]
    finally:
        for child in started:
            child.kill()
    codes = [child.returncode for child in started]
    return time.monotonic() - began, list(zip(codes, said, strict=True))


@pytest.mark.processes
def test_devices_that_wait_for_each_other_are_found(tmp_path: Path) -> None:
    _, ended = meet(tmp_path, 4.0, "part", 1)
    assert [code for code, _ in ended] == [1, 1]
    assert "All processes have waited for each other for" in ended[0][1], ended[0][1]
    assert "device_wait.py" in ended[0][1]


@pytest.mark.processes
@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize("kind", ["kill", "fail"])
def test_nobody_waits_for_a_process_that_ended(tmp_path: Path, kind: str, culprit: int) -> None:
    """No connection of NCCL closes; the machine knows who is gone, the store what has failed."""
    seconds, ended = meet(tmp_path, 300.0, kind, culprit)
    assert seconds < 90  # about 20, and the start of two processes on a busy machine
    code, said = ended[1 - culprit]
    assert code == 1
    said += ended[culprit][1]
    expected = f"Process {culprit} of host .*: it was killed, .*last training, step 7"
    if kind == "kill" and culprit == 0:  # the store of the run was its own
        expected = "Process 0 of host .* has not answered for .*last training, step 7"
    if kind == "fail":
        expected = "no luck"
    assert re.search(expected, said), said
