"""The memory of one of several processes: accounts by hand, and torch's own FSDP."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from surefit.memory.trace_step import Sharing, Traced, trace_training
from surefit.models.call import Call

SCRIPT = Path(__file__).resolve().parent / "count_sharded.py"
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


def test_units_that_are_gathered() -> None:
    # the head and the largest block, each in the buffer that it came in and in full
    assert trace(TWO).gathers == 2 * (HEAD + BLOCK)
    assert trace(replace(TWO, gathers_whole=True)).gathers == 2 * FULL


def test_of_earlier_micro_batches_a_shard_of_the_gradients_is_held() -> None:
    once, accumulating = trace(TWO), trace(TWO, accumulates=True)
    assert accumulating.gradients == FULL // 2
    assert once.peak < accumulating.peak <= once.peak + FULL // 2


def test_data_parallel_holds_buckets_beside_gradients() -> None:
    alone, ddp = trace(Sharing()), trace(Sharing(2, "ddp"))
    assert (ddp.weights, ddp.optimizer) == (alone.weights, alone.optimizer) == (FULL, 2 * FULL)
    assert (ddp.gradients, ddp.gathers) == (FULL, 0)
    # those of earlier micro-batches, and the buckets
    assert trace(Sharing(2, "ddp"), accumulates=True).gradients == 2 * FULL


def test_a_trace_leaves_the_module_as_it_was() -> None:
    module = Blocks()
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
