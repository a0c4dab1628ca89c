"""Times of work on a device, which goes on after the call; the device here is a clock of ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from surefit.memory.predict_peak import device_seconds
from surefit.models.call import Call
from surefit.training import measured_step


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
    monkeypatch.setattr("surefit.memory.predict_peak.time", clock)
    return made


def test_the_clock_waits_for_the_device(device: Device) -> None:
    began = device_seconds()
    device.start(2.0)
    assert device_seconds() - began == 2.0


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
    assert measured_step._time_passes(job, {"x": torch.ones(2, 3)}, backward) == (1.0, 3.0)
