"""Memory use of processes, as the kernel counts it, and how a run is kept below `max_memory_gb`.

Pages of mapped files are not counted anywhere: the kernel reclaims them when it needs memory.

The limit is enforced on Linux and for host memory, by two mechanisms together:

- The kernel refuses allocations that would exceed the limit (`RLIMIT_DATA`). An allocation fails
  before any of its memory is in use, so that one large tensor cannot jump over the limit.
- A thread reads the memory of the process every 25 ms. It adjusts the bound of the kernel, which
  counts address space and not resident memory, and asks the run to stop when memory that was
  already mapped fills up.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from surefit.errors import message_of

if TYPE_CHECKING:
    from surefit.memory.limit import Limit

STATUS = Path("/proc/self/status")
_SIZES = re.compile(rb"(\w+):\s+(\d+) kB")
_SHARED = ("/dev/shm/", "/memfd:", "/SYSV")
"""Where shared memory is mapped from, which is counted."""
NEW_OBJECTS = 100_000
"""New objects per pass of the garbage collector while a plan is made. With Python's default of 700,
it takes a fifth of that time."""


def anonymous_bytes() -> int:
    """Anonymous and shared resident memory of this process; outside Linux, all of it."""
    import psutil

    sizes = _status()
    known = sizes.get(b"RssAnon", 0) + sizes.get(b"RssShmem", 0)
    return known or int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """Peak resident set size of this process since `reset_peak`, without mapped files."""
    sizes = _status()
    return max(sizes.get(b"VmHWM", 0) - sizes.get(b"RssFile", 0), anonymous_bytes())


def counted_bytes(spans: Iterable[tuple[int, int]]) -> int:
    """What of some memory (addresses and sizes) is counted: of a mapped file, what was written."""
    files, counted, seen = _mapped_files(), 0, set()
    for address, size in spans:
        found = next((each for each in files if each[0] <= address < each[1]), None)
        if found is None:
            counted += size
        elif found not in seen:  # once for all tensors of the file
            seen.add(found)
            counted += found[2]
    return counted


def _mapped_files() -> list[tuple[int, int, int]]:
    """Where files are mapped: begin, end, and bytes that were written and are now anonymous."""
    found: list[tuple[int, int, int]] = []
    with suppress(OSError):
        place: tuple[int, int] | None = None
        for line in Path("/proc/self/smaps").read_text().splitlines():
            words = line.split()
            if not words[0].endswith(":"):
                begin, end = (int(part, 16) for part in words[0].split("-"))
                is_file = words[4] != "0" and not words[5].startswith(_SHARED)
                place = (begin, end) if is_file else None
            elif place is not None and words[0] == "Anonymous:":
                found.append((*place, int(words[1]) * 1024))
    return found


def reset_peak() -> None:
    """Start a new peak measurement, where the kernel allows it."""
    # Without permission, or outside Linux, the peak is that of the process since its start.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def trim_heap() -> None:
    """Return freed heap memory to the system (glibc's `malloc_trim`); elsewhere do nothing."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@contextmanager
def infrequent_collection() -> Iterator[None]:
    """While the block runs, collect garbage rarely: imports and reading leave few cycles behind."""
    before = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def free_memory() -> None:
    """Collect garbage, which may hold tensors in cycles, and return it to the system."""
    gc.collect()
    trim_heap()


def _status(file: int | None = None) -> dict[bytes, int]:
    """Return the sizes in /proc/self/status, or in that file, in bytes; none outside Linux."""
    try:
        text = os.pread(file, 4096, 0) if file is not None else STATUS.read_bytes()
    except OSError:
        return {}
    return {name: int(size) * 1024 for name, size in _SIZES.findall(text)}


INTERVAL_SECONDS = 0.025
CHILDREN_SECONDS = 1.0
"""Worker processes are read less often, because the kernel walks all their pages for it."""
TRIM_SECONDS = 10.0
"""Shortest time between two attempts to return freed heap memory near the limit."""
RESERVE_SHARE, LEAST_RESERVE_BYTES = 0.02, 16_000_000
"""Kept free below the limit: for unwinding, saving, and what is used between two readings."""
TRIM_SHARE = 0.95
OUT_OF_MEMORY_WORDS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "cannot allocate memory",
    "bad_alloc",
    "failed to allocate",
    "could not allocate",
)
BOUNDED_WORDS = ("could not create a", "can't start new thread")
"""Errors of oneDNN and of threads: they mean lack of memory if the process is bounded."""


def is_out_of_memory(error: BaseException, *, bounded: bool = False) -> bool:
    """Return whether an error, or its cause, means that an allocation failed.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    True
    """
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    words = OUT_OF_MEMORY_WORDS + (BOUNDED_WORDS if bounded else ())
    text = message_of(error).lower()
    if isinstance(error, RuntimeError) and any(each in text for each in words):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__, bounded=bounded)


class MemoryGuard:
    """Watches the memory of this process and its workers, and bounds its allocations."""

    def __init__(self, limit: Limit, *, workers: int = 0) -> None:
        self.limit = limit
        self.reserve_bytes = max(round(limit.bytes * RESERVE_SHARE), LEAST_RESERVE_BYTES)
        self.used_bytes = 0
        self.peak_bytes = 0
        self.is_near = False
        """Whether memory came so near to the limit that the run should stop after its step."""
        self._gap: int | None = None
        self._children_bytes = 0
        self._workers = workers
        self._children_read = self._trimmed = float("-inf")
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._status = -1

    @property
    def is_active(self) -> bool:
        """Whether there is a limit to enforce, and a system that can."""
        return self.limit.source == "max_memory_gb" and not self.limit.on_device and STATUS.exists()

    def ran_out(self, error: BaseException) -> bool:
        """Return whether an error means that the limit was reached."""
        return self.is_active and is_out_of_memory(error, bounded=True)

    def free(self) -> None:
        """Return what was freed to the system, for example after a step that did not fit."""
        if self._status < 0:
            free_memory()
            return
        gc.collect()
        self._trim()
        self.is_near = False

    def use_reserve(self) -> None:
        """Let the run have what was kept free below its limit, to save its last step."""
        self.reserve_bytes = 0
        if self._status >= 0:
            self.read()

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """While the block runs, allocations beyond the limit fail; without a limit, do nothing."""
        if not self.is_active:
            yield
            return
        import resource

        before = resource.getrlimit(resource.RLIMIT_DATA)
        self._ended.clear()
        self._status = os.open(STATUS, os.O_RDONLY)
        thread = threading.Thread(target=self._watch, name="surefit-memory", daemon=True)
        try:
            trim_heap()
            thread.start()  # before the bound: without memory, it would not start, nor fail
            self.read()
            yield
        finally:
            self._ended.set()
            if thread.ident is not None:
                thread.join()
            resource.setrlimit(resource.RLIMIT_DATA, before)
            os.close(self._status)
            self._status = -1

    def read(self) -> int:
        """Read the memory in use, and adjust the bound of the kernel to it."""
        with self._lock:
            anonymous, shared, mapped = _read_status(self._status)
            other = shared + self._read_children()
            self.used_bytes = anonymous + other
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
            # Mapped and not in use: stacks of threads, trimmed heap. What was only just mapped and
            # is about to be filled is no gap, hence the least value seen.
            gap = mapped - anonymous
            self._gap = gap if self._gap is None else min(self._gap, gap)
            self._bound(self.limit.bytes - self.reserve_bytes - other + self._gap)
        if self.used_bytes > TRIM_SHARE * self.limit.bytes:
            if time.monotonic() - self._trimmed > TRIM_SECONDS:
                self._trim()
            elif self.used_bytes > self.limit.bytes - self.reserve_bytes // 2:
                self.is_near = True
        return self.used_bytes

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL_SECONDS):
            self.read()

    def _trim(self) -> None:
        with self._lock:
            before = _read_status(self._status)[0]
            trim_heap()
            self._trimmed = time.monotonic()
            freed = max(before - _read_status(self._status)[0], 0)
            self._gap = freed + (self._gap or 0)

    def _bound(self, num_bytes: int) -> None:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        wanted = max(num_bytes, 1)
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))

    def _read_children(self) -> int:
        """Memory that only the workers have; pages shared with this process are counted here."""
        now = time.monotonic()
        if self._workers and now - self._children_read > CHILDREN_SECONDS:
            self._children_read = now
            self._children_bytes = _children_bytes()
        return self._children_bytes


def _read_status(file: int) -> tuple[int, int, int]:
    """Anonymous and shared resident memory, and the mapped private memory, in bytes."""
    sizes = _status(file)
    return sizes.get(b"RssAnon", 0), sizes.get(b"RssShmem", 0), sizes.get(b"VmData", 0)


def _children_bytes() -> int:
    import psutil

    total = 0
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has just ended
            total += int(child.memory_full_info().uss)
    return total
