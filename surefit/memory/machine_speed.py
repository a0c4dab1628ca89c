"""Compute and memory throughput of this machine, and the time of a traced step on it.

A device goes on working after the call that started it has returned, so its clock waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from surefit.memory.trace_step import Traced

if TYPE_CHECKING:
    import torch

OP_SECONDS = 12e-6
"""Overhead of Python and torch per operation."""
READS_PER_WRITE = 2
"""Bytes read per byte written, on average."""
HOST_SIZES, DEVICE_SIZES = (512, 1 << 22), (4096, 1 << 24)
"""Rows of the matrix, and numbers of the copy, that are timed. An accelerator needs large ones:
small ones take as long as it takes to start them, or fit into its cache."""


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


def device_seconds() -> float:
    """Seconds on a clock, read once the device has finished all it was asked to do."""
    import torch

    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


@lru_cache
def measure_machine(lower: torch.dtype | None = None) -> Machine:
    """Time a matrix product and a copy, a few milliseconds each, on the device of the runs.

    `lower` is the precision that a run computes products in, if not float32; an accelerator is
    several times faster in it. On a CPU, products are timed in float32.
    """
    import torch

    device, dtype, (size, count) = torch.device("cpu"), torch.float32, HOST_SIZES
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is not None:
        device, dtype, (size, count) = found, lower or dtype, DEVICE_SIZES
    matrix = torch.ones(size, size, device=device, dtype=dtype)
    values = torch.ones(count, device=device)
    return Machine(
        2 * size**3 / _shortest(lambda: matrix @ matrix),
        2 * count * torch.float32.itemsize / _shortest(lambda: values + 1),
    )


def _shortest(work: Callable[[], Any]) -> float:
    def timed() -> float:
        began = device_seconds()
        work()
        return device_seconds() - began

    return max(min(timed() for _ in range(4)), 1e-9)
