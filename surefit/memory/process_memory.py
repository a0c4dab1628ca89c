"""Memory use of processes, as the kernel counts it.

Pages of mapped files are not counted anywhere: the kernel reclaims them when it needs memory.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_COUNTED = ("Pss_Anon:", "Pss_Shmem:")
_SHARED = ("/dev/shm/", "/memfd:", "/SYSV")
"""Where shared memory is mapped from, which is counted."""
NEW_OBJECTS = 100_000
"""New objects per pass of the garbage collector while a plan is made. With Python's default of 700,
it takes a fifth of that time."""
SAMPLE_SECONDS = 1.0
"""How often `watch_peak` reads the memory: the kernel walks all pages of the process for it."""


def anonymous_bytes() -> int:
    """Anonymous and shared resident memory of this process; outside Linux, all of it."""
    import psutil

    return _status("RssAnon") + _status("RssShmem") or int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """Peak resident set size of this process since `reset_peak`, without mapped files."""
    return max(_status("VmHWM") - _status("RssFile"), anonymous_bytes())


def mapped_file_bytes() -> int:
    """Resident pages of mapped files (libraries, data): the kernel can reclaim them."""
    return _status("RssFile")


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


def tree_bytes(pid: int | None = None) -> int:
    """Anonymous and shared memory of a process (default: this one) and all its children.

    It is a sum of proportional set sizes (PSS), so that shared pages are counted once.
    """
    import psutil

    process = psutil.Process(pid)
    return sum(_proportional_bytes(each) for each in (process, *process.children(recursive=True)))


@contextmanager
def watch_peak() -> Iterator[Callable[[], int]]:
    """While the block runs, read `tree_bytes` now and then; the function returns the largest.

    The kernel has a peak of its own, but counts mapped files in it.
    """
    ends, seen = threading.Event(), [tree_bytes()]

    def peak() -> int:
        seen[0] = max(seen[0], tree_bytes())
        return seen[0]

    def watch() -> None:
        while not ends.wait(SAMPLE_SECONDS):
            peak()

    thread = threading.Thread(target=watch, name="surefit-peak", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ends.set()
        thread.join()


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


def free_memory() -> None:
    """Collect garbage, which may hold tensors in cycles, and return it to the system."""
    gc.collect()
    trim_heap()


def _proportional_bytes(process: object) -> int:
    import psutil

    assert isinstance(process, psutil.Process)
    try:
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except (PermissionError, ProcessLookupError):  # not ours, or it has just ended
        return 0
    except FileNotFoundError:  # ended, or a system without /proc
        with suppress(psutil.Error):
            return int(process.memory_full_info().uss)
        return 0
    counted = [line.split() for line in rollup.splitlines() if line.startswith(_COUNTED)]
    return sum(int(words[1]) * 1024 for words in counted)


def _status(name: str) -> int:
    """A value of /proc/self/status in bytes; 0 if there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
