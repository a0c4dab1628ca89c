"""Replays the allocations of a traced pass on this system's malloc, in a process of its own.

Live tensors alone do not tell how much memory the process uses. glibc cuts a block out of a larger
one, because torch asks for aligned memory, and small objects settle in what is left over. When the
block is freed it is too small for the next tensor of its own size, and a hole remains. How many
holes remain depends on the order of all allocations, so it is replayed instead of estimated. The
memory is not written to, so that the replay needs none: the kernel counts its addresses.

This file is run as a script by `replay`, hence it imports nothing of the package.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

LARGEST_ON_HEAP = 32 * 1024 * 1024
"""glibc maps larger blocks one by one, and returns them to the system when they are freed."""
ALIGNMENT = 64
"""torch's allocator asks for memory at multiples of this."""
SMALL_BYTES = (
    (24, 40, 56, 72, 88),
    (24, 24, 40, 40, 56, 56, 72, 72, 88, 88),
    (104, 88, 72, 56, 40, 24),
    (24, 40, 56, 72, 88, 104, 200, 300),
    (200, 88, 24, 104, 40, 300, 56, 72),
)
"""Small objects that live as long as a tensor: its sizes, its storage, its node in the graph. Which
ones there are decides where holes remain, hence several replays, of which the mean counts."""
STEPS = 4
"""Steps that are replayed: holes grow in the first ones, and are used again in later ones."""
TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Allocations:
    """Sizes of tensors that stay, and the allocations and frees of one step in their order.

    A positive event allocates so many bytes; −n frees the n-th allocation of the step. What the
    step leaves is freed at its end. The optimizer state is allocated at the end of the first step.
    """

    held: tuple[int, ...]
    state: tuple[int, ...]
    events: tuple[int, ...]

    @property
    def largest_on_heap(self) -> int:
        """Bytes of the largest block of the step that glibc does not map by itself."""
        return max((size for size in self.events if 0 < size < LARGEST_ON_HEAP), default=0)


def replay(allocations: Allocations) -> int | None:
    """Mean of the peak bytes of malloc's memory; None if this system cannot replay."""
    parts = (allocations.held, allocations.state, allocations.events)
    sent = array("q", (number for part in parts for number in (len(part), *part)))
    command = [sys.executable, "-I", "-S", str(Path(__file__))]
    try:
        done = subprocess.run(
            command, input=sent.tobytes(), capture_output=True, timeout=TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return int(done.stdout)


def _replay_here(
    small: Iterable[int], held: Iterable[int], state: Iterable[int], events: Iterable[int]
) -> int:
    """Allocate and free in this process; returns the growth of its address space at its peak."""
    libc = ctypes.CDLL(None)
    malloc, memalign, free = libc.malloc, libc.posix_memalign, libc.free
    malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    free.argtypes, free.restype = [ctypes.c_void_p], None
    result = ctypes.c_void_p()
    address = ctypes.addressof(result)

    def take(num_bytes: int) -> list[int | None]:
        blocks = [malloc(size) for size in small]
        if memalign(address, ALIGNMENT, num_bytes):
            raise MemoryError(num_bytes)
        return [*blocks, result.value]

    before = _status("VmSize")
    kept = [take(size) for size in held]
    for step in range(STEPS):
        live: dict[int, list[int | None]] = {}
        num_taken = 0
        for event in events:
            if event > 0:
                num_taken += 1
                live[num_taken] = take(event)
            else:
                for block in live.pop(-event):
                    free(block)
        if step == 0:
            kept += [take(size) for size in state]
        for blocks in live.values():
            for block in blocks:
                free(block)
    return _status("VmPeak") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _lift_limit() -> None:
    """Undo a bound on the memory of the process that started this one: the replay uses none."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _parts(numbers: array[int]) -> Iterator[list[int]]:
    """
    >>> list(_parts(array("q", [2, 5, 6, 0, 1, 7])))
    [[5, 6], [], [7]]
    """
    start = 0
    while start < len(numbers):
        end = start + 1 + numbers[start]
        yield numbers[start + 1 : end].tolist()
        start = end


def _in_fork(work: Callable[[], int]) -> int:
    """The result of `work` in a fork of this process, whose heap is as it was."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return int(pipe.read())  # empty, hence an error, if memory could not be allocated


if __name__ == "__main__":
    received = array("q")
    received.frombytes(sys.stdin.buffer.read())
    _lift_limit()
    parts = [*_parts(received)]
    peaks = [_in_fork(partial(_replay_here, small, *parts)) for small in SMALL_BYTES]
    print(sum(peaks) // len(peaks))
