"""Compute and memory throughput of this machine, and the time of a traced step on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from surefit.memory.trace_step import Traced

OP_SECONDS = 12e-6
"""Overhead of Python and torch per operation."""
READS_PER_WRITE = 2
"""Bytes read per byte written, on average."""


@dataclass(frozen=True)
class Machine:
    """Measured throughput."""

    flops_per_second: float
    bytes_per_second: float

    def seconds(self, traced: Traced) -> tuple[float, float]:
        """Time of a step that grows with its positions, and time that does not."""
        moved = traced.moved_bytes * (1 + READS_PER_WRITE)
        work = traced.flops / self.flops_per_second + moved / self.bytes_per_second
        return work, traced.num_ops * OP_SECONDS


@lru_cache(maxsize=1)
def measure_machine() -> Machine:
    """Time a matrix product and a copy, a few milliseconds each, on the device of the runs."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, count = 512, 1 << 22
    matrix = torch.ones(size, size, device=device)
    values = torch.ones(count, device=device)
    product = _shortest(lambda: matrix @ matrix)
    copied = _shortest(lambda: values + 1)
    return Machine(2 * size**3 / product, 2 * values.nbytes / copied)


def _shortest(work: Callable[[], Any]) -> float:
    import torch

    def timed() -> float:
        began = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - began

    return max(min(timed() for _ in range(4)), 1e-9)
