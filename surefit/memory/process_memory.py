"""Memory use of processes, as the kernel counts it.

Pages of mapped files are not counted anywhere: the kernel reclaims them when it needs memory.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

_COUNTED = ("Pss_Anon:", "Pss_Shmem:")


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


def in_mapped_file(address: int) -> bool:
    """Whether memory at an address belongs to a mapped file, and is not counted."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return False
    for line in lines:
        span, _, _, _, inode, *_ = line.split()
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return inode != "0"
    return False


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


def trim_heap() -> None:
    """Return freed heap memory to the system (glibc's `malloc_trim`); elsewhere do nothing."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _proportional_bytes(process: object) -> int:
    import psutil

    assert isinstance(process, psutil.Process)
    try:
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except (PermissionError, ProcessLookupError):  # not ours, or it has just ended
        return 0
    except FileNotFoundError:  # ended, or a system without /proc
        return int(process.memory_full_info().uss) if process.is_running() else 0
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
