"""A traced step: bytes and work of operations; the memory of one of several processes; times."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from surefit.memory.meta_device import LARGEST_ON_HEAP, MOST_REPEATS, LiveBytes
from surefit.memory.predict_peak import device_seconds
from surefit.memory.trace_step import Sharing, Traced, trace_training
from surefit.models.call import Call
from surefit.training import measured_step

SCRIPT = Path(__file__).resolve().parents[2] / "bench/count_sharded.py"
BLOCK, HEAD = 8 * 8 * 4, 10 * 8 * 4
"""Bytes of the weights of a block and of the head."""
FULL = 2 * BLOCK + HEAD
TWO = Sharing(2, "fsdp")


class Blocks(nn.Module):
    """Two blocks and a head, without biases, on the meta device."""

    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            blocks = (nn.Sequential(nn.Linear(8, 8, bias=False)) for _ in range(2))
            self.blocks = nn.ModuleList(blocks)
            self.head = nn.Linear(8, 10, bias=False)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def trace(sharing: Sharing, module: nn.Module | None = None, **options: Any) -> Traced:
    return trace_training(
        Blocks() if module is None else module,
        Call({"x": "x"}),
        lambda outputs, batch: (outputs.logits.sum(), 1),
        {"x": torch.zeros(1, 8)},
        sharing=sharing,
        **options,
    )


@pytest.mark.parametrize("count", [2, 4, 64])
def test_shards_of_weights_and_optimizer_state(count: int) -> None:
    traced = trace(replace(TWO, num_processes=count))
    # rows are padded to a multiple of the processes: 8 and 10 rows of 8 weights
    rows = 2 * -(-8 // count) + -(-10 // count)
    assert traced.weights == rows * 8 * 4
    assert traced.optimizer == 2 * rows * 8 * 4


def test_what_processes_hold_of_a_model_that_is_divided_or_copied() -> None:
    once, accumulating = trace(TWO), trace(TWO, accumulates=True)
    # the head and the largest block, each in the buffer that it came in and in full
    assert once.gathers == 2 * (HEAD + BLOCK)
    assert trace(replace(TWO, gathers_whole=True)).gathers == 2 * FULL
    assert accumulating.gradients == FULL // 2  # of earlier micro-batches
    assert once.peak < accumulating.peak <= once.peak + FULL // 2
    alone, ddp = trace(Sharing()), trace(Sharing(2, "ddp"))
    assert (ddp.weights, ddp.optimizer) == (alone.weights, alone.optimizer) == (FULL, 2 * FULL)
    assert (ddp.gradients, ddp.gathers) == (FULL, 0)
    # those of earlier micro-batches, and the buckets
    assert trace(Sharing(2, "ddp"), accumulates=True).gradients == 2 * FULL
    module = Blocks()  # which stays as it was
    before = [(weight.dtype, weight.grad) for weight in module.parameters()]
    assert trace(TWO, module, dtype=torch.bfloat16) == trace(TWO, module, dtype=torch.bfloat16)
    assert [(weight.dtype, weight.grad) for weight in module.parameters()] == before


@pytest.mark.slow
def test_the_account_is_near_that_of_torch() -> None:
    """Under a fake process group, where every allocation of `fully_shard` is counted."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split("\t") for line in done.stdout.splitlines() if "\t" in line]
    assert len(lines) == 16
    for name, predicted, counted in lines:
        assert 0.95 < int(predicted) / int(counted) < 1.25, name


def on_meta(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta")


def test_the_heap_counts_what_is_allocated_and_not_only_what_is_live() -> None:
    count, size = LiveBytes(), 8 * 8 * 4
    with count:
        for _ in range(3):
            on_meta(8, 8)
        assert (count.live, count.peak, count.heap_bytes) == (0, size, 3 * size)
        for _ in range(100):  # a loop over time steps leaves no more holes
            on_meta(8, 8)
        assert count.heap_bytes == MOST_REPEATS * size
        large = on_meta(LARGEST_ON_HEAP)
    assert count.heap_bytes == MOST_REPEATS * size
    assert count.live == large.nbytes


def test_a_repeated_operation_counts_as_much_as_the_first() -> None:
    counts = []
    for times in (1, 2):
        count = LiveBytes()
        with count:
            kept = [on_meta(8, 8) @ on_meta(8, 8) for _ in range(times)]
        assert len(kept) == times
        counts.append((count.live, count.flops))
    assert counts[1] == (2 * counts[0][0], 2 * counts[0][1])


def test_products_by_expert_are_traced_in_float32() -> None:
    shapes = []
    for device in ("cpu", "meta"):
        rows = torch.ones(6, 8, device=device, requires_grad=True)
        experts = torch.ones(2, 8, 4, device=device, requires_grad=True)
        offsets = torch.tensor([2, 6], dtype=torch.int32)
        with LiveBytes():
            made = torch.nn.functional.grouped_mm(rows, experts, offs=offsets.to(device))
            made.square().sum().backward()
        assert rows.grad is not None
        assert experts.grad is not None
        shapes.append((made.shape, rows.grad.shape, experts.grad.shape))
    assert shapes[0] == shapes[1] == ((6, 4), (6, 8), (2, 8, 4))


def test_a_mask_that_is_moved_to_the_cpu_is_traced() -> None:
    with LiveBytes():
        moved = on_meta(3).bool().to("cpu")
        assert (torch.ones(2, 3, dtype=torch.bool) & moved).shape == (2, 3)


class Device:
    """Work is queued when it is started, and takes its time when the host waits for it."""

    def __init__(self) -> None:
        self.seconds = self.queued = 0.0

    def start(self, seconds: float) -> None:
        self.queued += seconds

    def synchronize(self) -> None:
        self.seconds, self.queued = self.seconds + self.queued, 0.0


def test_a_pass_is_timed_by_what_the_device_does(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "synchronize", device.synchronize)
    clock = SimpleNamespace(perf_counter=lambda: device.seconds)
    monkeypatch.setattr("surefit.memory.predict_peak.time", clock)
    began = device_seconds()
    device.start(2.0)
    assert device_seconds() - began == 2.0

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
