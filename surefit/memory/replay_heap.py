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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

LARGEST_ON_HEAP = 32 * 1024 * 1024
"""glibc maps larger blocks one by one, and returns them to the system when they are freed."""
ALIGNMENT = 64
"""torch's allocator asks for memory at multiples of this."""
SMALL_OBJECTS = (
    ((104, 184, 40), (184, 40, 24, 24)),
    ((104, 184), (24, 24, 24, 40, 88)),
    ((104, 184, 24), (72, 88, 40, 24, 24, 40, 72)),
    ((104, 184, 24), (24, 488, 24, 24, 40, 24, 24, 72)),
    ((104, 184), (24, 24, 24, 24)),
    ((104, 184), (40, 24, 24, 24, 24, 72)),
    ((104, 184, 24), (40, 24, 24, 488, 24)),
)
"""Bytes of small objects: those of a tensor (its storage, itself), freed with it, and those of a
node of the graph (itself, its edges, the sizes it saves), freed when the backward pass is through
with it. In the recorded allocations of real steps, it is objects of less than 100 bytes that live
long that make holes. Which of them meets which leftover is chance, hence several replays, of
which the mean counts."""
NODE_MADE, NODE_FREED = 2**62, -(2**62)
"""Events of the graph: a forward operation makes a node, the backward pass frees the newest."""
STEPS = 4
"""Steps that are replayed: holes grow in the first ones, and are used again in later ones."""
MOST_EVENTS = 200_000
"""Events of a step that are replayed, over all replays: a model with very many is replayed less
often, and at least once."""
TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Allocations:
    """Allocations of what stays, of the optimizer state and of one step, in their order.

    A positive event allocates so many bytes; −n frees the n-th allocation of its part. NODE_MADE
    and NODE_FREED stand between them. What the step leaves is freed at its end. The optimizer state
    is allocated at the end of the first step.
    """

    held: tuple[int, ...]
    state: tuple[int, ...]
    events: tuple[int, ...]

    @property
    def largest_on_heap(self) -> int:
        """Bytes of the largest block of the step that glibc does not map by itself."""
        return max((size for size in self.events if 0 < size < LARGEST_ON_HEAP), default=0)


def replay(allocations: Allocations) -> int | None:
    """Peak bytes of malloc's memory, the mean of the replays; None if this system cannot replay."""
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


class Blocks:
    """Objects of one kind, each a tensor's memory (or none) and the small objects beside it.

    Their addresses have a place from the start, so that the replay itself allocates nothing.
    """

    def __init__(self, count: int, small: Sequence[int]) -> None:
        libc = ctypes.CDLL(None)
        self._malloc, self._memalign, self._free = libc.malloc, libc.posix_memalign, libc.free
        self._malloc.argtypes, self._malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
        self._memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        self._free.argtypes, self._free.restype = [ctypes.c_void_p], None
        self._small, self._width = small, 1 + len(small)
        self._places = (ctypes.c_void_p * (count * self._width))()
        self._start = ctypes.addressof(self._places)

    def take(self, number: int, num_bytes: int) -> None:
        """Allocate an object; 0 bytes are those of a node, which has small objects only."""
        place = number * self._width
        address = self._start + place * ctypes.sizeof(ctypes.c_void_p)
        if num_bytes and self._memalign(address, ALIGNMENT, num_bytes):
            raise MemoryError(num_bytes)
        for size in self._small:
            place += 1
            self._places[place] = self._malloc(size)

    def free(self, number: int) -> None:
        """Free an object, the last part of it first; nothing if it is free already."""
        first = number * self._width
        for place in range(first + self._width - 1, first - 1, -1):
            self._free(self._places[place])
            self._places[place] = None


def _replay_here(
    small: tuple[Sequence[int], Sequence[int]],
    held: Sequence[int],
    state: Sequence[int],
    events: Sequence[int],
) -> int:
    """Allocate and free in this process; returns the growth of its address space at its peak."""
    for_tensor, for_node = small
    kept = Blocks(len(held) + len(state), for_tensor)
    tensors, nodes = Blocks(len(events), for_tensor), Blocks(len(events), for_node)
    before = _status("VmSize")
    num_taken = 0
    for event in held:
        if event > 0:
            kept.take(num_taken, event)
            num_taken += 1
        else:
            kept.free(-event - 1)
    for step in range(STEPS):
        _replay_step(tensors, nodes, events)
        if step == 0:
            for number, size in enumerate(state, len(held)):
                kept.take(number, size)
    return _status("VmPeak") - before


def _replay_step(tensors: Blocks, nodes: Blocks, events: Sequence[int]) -> None:
    num_taken = num_nodes = 0
    for event in events:
        if event == NODE_MADE:
            nodes.take(num_nodes, 0)
            num_nodes += 1
        elif event == NODE_FREED:
            num_nodes = max(num_nodes - 1, 0)
            nodes.free(num_nodes)
        elif event > 0:
            tensors.take(num_taken, event)
            num_taken += 1
        else:
            tensors.free(-event - 1)
    for number in range(num_taken):
        tensors.free(number)
    for number in reversed(range(num_nodes)):
        nodes.free(number)


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
        answer = pipe.read()
    os.waitpid(child, 0)
    return int(answer)  # empty, hence an error, if memory could not be allocated


if __name__ == "__main__":
    received = array("q")
    received.frombytes(sys.stdin.buffer.read())
    _lift_limit()
    parts = [*_parts(received)]
    num_replays = max(1, min(len(SMALL_OBJECTS), MOST_EVENTS // max(len(parts[-1]), 1)))
    peaks = [
        _in_fork(partial(_replay_here, small, *parts)) for small in SMALL_OBJECTS[:num_replays]
    ]
    print(sum(peaks) // len(peaks))
