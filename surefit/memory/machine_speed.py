"""How fast this machine multiplies and moves numbers, and what a traced step takes on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from surefit.memory.trace_step import Traced

OP_SECONDS = 12e-6
"""Python and torch around one operation, whatever its size."""
READS_PER_WRITE = 2
"""Tensors that are read for each one that is made."""


@dataclass(frozen=True)
class Machine:
    """Measured rates."""

    flops_per_second: float
    bytes_per_second: float

    def seconds(self, traced: Traced) -> tuple[float, float]:
        """The part of a step that goes with its positions, and the part that does not."""
        moved = traced.moved_bytes * (1 + READS_PER_WRITE)
        work = traced.flops / self.flops_per_second + moved / self.bytes_per_second
        return work, traced.num_ops * OP_SECONDS


@lru_cache(maxsize=1)
def measure_machine() -> Machine:
    """A product of matrices and a copy, a few milliseconds each, on the device runs would use."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, count = 512, 1 << 22
    matrix = torch.ones(size, size, device=device)
    values = torch.ones(count, device=device)
    product = _best(lambda: matrix @ matrix)
    copied = _best(lambda: values + 1)
    return Machine(2 * size**3 / product, 2 * values.nbytes / copied)


def _best(work: Callable[[], Any]) -> float:
    import torch

    def timed() -> float:
        began = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - began

    return max(min(timed() for _ in range(4)), 1e-9)
