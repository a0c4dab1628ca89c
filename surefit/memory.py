"""How much host memory this process and its children hold, by the kernel's own count."""

from __future__ import annotations

from pathlib import Path

GB = 10**9


def held_bytes() -> int:
    """Anonymous and shared memory of this process and its children, each page counted once.

    Pages of mapped files are not counted: the kernel takes them back when it needs them.
    """
    import psutil

    process = psutil.Process()
    return sum(_held_by(each) for each in (process, *process.children(recursive=True)))


def _held_by(process: object) -> int:
    import psutil

    assert isinstance(process, psutil.Process)
    try:
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except FileNotFoundError:  # no Linux, or the child has ended
        return int(process.memory_full_info().uss) if process.is_running() else 0
    except (PermissionError, ProcessLookupError):
        return 0
    kept = [line.split() for line in rollup.splitlines() if line.startswith(_COUNTED)]
    return sum(int(words[1]) * 1024 for words in kept)


_COUNTED = ("Pss_Anon:", "Pss_Shmem:")
