"""Times of work on a device, which goes on after the call; the device here is a clock of ours."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from surefit.memory import machine_speed, prove
from surefit.memory.device_clock import device_seconds
from surefit.models.call import Call


class Device:
    """Work is queued when it is started, and takes its time when the host waits for it."""

    def __init__(self) -> None:
        self.seconds = self.queued = 0.0

    def start(self, seconds: float) -> None:
        self.queued += seconds

    def synchronize(self) -> None:
        self.seconds, self.queued = self.seconds + self.queued, 0.0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "synchronize", made.synchronize)
    clock = SimpleNamespace(perf_counter=lambda: made.seconds)
    monkeypatch.setattr("surefit.memory.device_clock.time", clock)
    return made


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The matrix products that are timed; each takes a second."""
    timed: list[Any] = []

    def seconds(size: int, kind: str, dtype: torch.dtype) -> float:
        timed.append((size, kind, dtype))
        return 1.0

    monkeypatch.setattr(machine_speed, "_product_seconds", seconds)
    monkeypatch.setattr(machine_speed, "_copy_seconds", lambda count, kind: 1.0)
    machine_speed.measure_machine.cache_clear()
    yield timed
    machine_speed.measure_machine.cache_clear()


def test_the_clock_waits_for_the_device(device: Device) -> None:
    began = device_seconds()
    device.start(2.0)
    assert device_seconds() - began == 2.0


def test_without_a_device_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: 1 / 0)
    assert device_seconds() <= device_seconds()


def test_a_pass_is_timed_by_what_the_device_does(device: Device) -> None:
    class Queues(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            device.start(1.0)
            return super().forward(x)

    def backward(loss: torch.Tensor) -> None:
        device.start(2.0)
        loss.backward()

    pipeline = SimpleNamespace(
        module=Queues(3, 1),
        call=Call({"x": "x"}),
        loss=lambda outputs, batch: (outputs.logits.sum(), torch.tensor(2)),
    )
    job: Any = SimpleNamespace(pipeline=pipeline, batches=SimpleNamespace(grad_accum=1))
    assert prove._time_passes(job, {"x": torch.ones(2, 3)}, backward) == (1.0, 3.0)


def test_an_update_is_timed_without_the_first_one(device: Device) -> None:
    class Queues(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            device.start(4.0 if not self.state else 1.0)
            self.state["stepped"] = {}

    module = nn.Linear(2, 2)
    assert prove.create_optimizer_state(module, Queues(module.parameters())) == 1.0


def test_products_are_timed_on_the_accelerator_in_the_precision_of_the_run(
    device: Device, products: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    machine_speed.measure_machine(torch.bfloat16)
    machine_speed.measure_machine()
    assert products == [(4096, "cuda", torch.bfloat16), (4096, "cuda", torch.float32)]


def test_on_a_cpu_products_are_timed_in_float32(products: list[Any]) -> None:
    machine = machine_speed.measure_machine(torch.bfloat16)
    assert products == [(512, "cpu", torch.float32)]
    assert machine == machine_speed.Machine(2 * 512**3, 2 * 4 * (1 << 22))


def test_memory_that_planning_left_on_the_device_is_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: done.append(name))
    prove._reset_peak()
    assert done == ["empty_cache", "reset_peak_memory_stats"]
