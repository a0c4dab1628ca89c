"""How much memory a run may hold, and how much this process holds already."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GB = 10**9
PROCESS_BYTES = 330_000_000
"""What a process holds after the imports and one step of a tiny model, measured."""
CONTEXT_BYTES = 500_000_000
"""What a CUDA process takes of its device before the first tensor: context and kernels."""


@dataclass(frozen=True)
class Limit:
    """The most bytes a run may hold, who says so, and where they lie."""

    bytes: int
    source: str
    on_device: bool = False
    """Whether they are a device's own, apart from the memory of the process."""

    @property
    def meaning(self) -> str:
        """The limit in words, after its figure."""
        return f"allowed by {self.source}" if self.source.endswith("_gb") else self.source


def find_limit(max_memory_gb: float | None = None, device_memory_gb: float | None = None) -> Limit:
    """What was asked for, else what the device, the container and the machine have left.

    On the CPU the limit is for the whole process, with what it holds already.
    """
    import torch

    if device_memory_gb is not None:
        return Limit(round(device_memory_gb * GB), "device_memory_gb", on_device=True)
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        found = Limit(free + torch.cuda.memory_reserved(), "free on the device", on_device=True)
    else:
        found = min(_host_limits(), key=lambda limit: limit.bytes)
    if max_memory_gb is not None and max_memory_gb * GB < found.bytes:
        return Limit(round(max_memory_gb * GB), "max_memory_gb", found.on_device)
    return found


def held_bytes() -> int:
    """Anonymous memory of this process; pages of mapped files can be taken back, so they are not
    counted."""
    return _status("RssAnon") or _resident()


def peak_held_bytes() -> int:
    """The most memory this process has held since `forget_peak`, without mapped files."""
    return max(_status("VmHWM") - _status("RssFile"), held_bytes())


def forget_peak() -> None:
    """Begin to count the peak anew, where the system can."""
    # On another system, or where it is not allowed, the peak is that of the process so far.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _host_limits() -> list[Limit]:
    own = held_bytes()
    free = _figure(Path("/proc/meminfo"), "MemAvailable") or _installed_bytes()
    limits = [Limit(free + own, "free on this machine")]
    for maximum, used in _containers():
        limits.append(Limit(max(maximum - used, 0) + own, "free in this container"))
    return limits


def _containers(groups: Path = Path("/sys/fs/cgroup")) -> list[tuple[int, int]]:
    """Limit and use of the control groups this process is in (version 2, then 1)."""
    found = []
    for folder, limit, counted in (
        ("", "memory.max", ("anon", "shmem")),
        ("memory", "memory.limit_in_bytes", ("total_rss", "total_shmem")),
    ):
        root = groups / folder
        for group in (root / _own_group(folder), root):
            try:
                maximum = (group / limit).read_text().strip()
                stat = dict(line.split() for line in (group / "memory.stat").open())
            except (OSError, ValueError):
                continue
            if maximum.isdigit():
                found.append((int(maximum), sum(int(stat.get(key, 0)) for key in counted)))
    return found


def _own_group(controller: str) -> str:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path.lstrip("/")
    return ""


def _status(name: str) -> int:
    return _figure(Path("/proc/self/status"), name)


def _figure(file: Path, name: str) -> int:
    """A figure of the kernel's, in bytes; 0 where there is none."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _resident() -> int:
    """The most this process has held, where the kernel does not tell more."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _installed_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
