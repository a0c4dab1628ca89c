"""How much host memory this process and its children hold, by the kernel's own count."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

GB = 10**9


def held_bytes(pid: int | None = None) -> int:
    """Anonymous and shared memory of a process (this one) and its children, in bytes.

    Pages of mapped files are not counted: the kernel takes them back when it needs them.
    """
    import psutil

    process = psutil.Process(pid)
    return sum(_held_by(each) for each in (process, *process.children(recursive=True)))


def _held_by(process: object) -> int:
    import psutil

    assert isinstance(process, psutil.Process)
    try:
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except (PermissionError, ProcessLookupError):  # not ours, or it has just ended
        return 0
    except FileNotFoundError:  # ended, or a system without /proc
        return int(process.memory_full_info().uss) if process.is_running() else 0
    kept = [line.split() for line in rollup.splitlines() if line.startswith(_COUNTED)]
    return sum(int(words[1]) * 1024 for words in kept)


_COUNTED = ("Pss_Anon:", "Pss_Shmem:")


def give_back() -> None:
    """Return to the system what malloc keeps of freed memory; does nothing without glibc."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@contextmanager
def rare_collection() -> Iterator[None]:
    """Look for unreachable cycles once in 100,000 new objects: importing and reading make few.

    Python's default is once in 700, which takes a fifth of the time of a plan.
    """
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
