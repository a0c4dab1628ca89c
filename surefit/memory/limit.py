"""The memory limit of a run, and the devices that runs are planned for.

Containers (Docker, Kubernetes), batch systems (Slurm) and systemd limit memory by Linux control
groups (cgroups), version 1 and 2. A group is bound by its own limit and by those of all groups
around it, so every ancestor is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

from surefit.errors import UsageError
from surefit.gigabytes import show_gb, to_bytes
from surefit.memory.process_memory import anonymous_bytes, trim_heap
from surefit.processes import num_on_host

DEVICE_CONTEXT_BYTES = 500_000_000
"""Device memory that a CUDA process uses before its first tensor: the context and kernels."""
PLANNED_DEVICE = "device_memory_gb"
"""The source of the limit of a device that is not here."""


@dataclass(frozen=True)
class Limit:
    """The most memory a run may use, and what sets that limit."""

    bytes: int
    """Host memory: of the whole process, with what it already uses. Else: of the device."""
    source: str
    on_device: bool = False
    """Whether it is the memory of an accelerator, not that of the process."""

    @property
    def used_bytes(self) -> int:
        """Memory within the limit that is already in use: the process, or the device context.

        Free memory of a device that is here is read from its context, which is not in it.
        """
        if self.is_planned_device:
            return DEVICE_CONTEXT_BYTES
        return 0 if self.on_device else anonymous_bytes()

    @property
    def is_planned_device(self) -> bool:
        """Whether it is the memory of a device that is not here."""
        return self.on_device and self.source == PLANNED_DEVICE

    @property
    def free_bytes(self) -> int:
        """Memory that can still be allocated within the limit."""
        return max(self.bytes - self.used_bytes, 0)

    def shared_by(self, processes: int) -> Limit:
        """Return the limit of each of the processes that a host would run; a device has one of
        them.

        >>> Limit(8_000, "max_memory_gb").shared_by(4).bytes
        8000
        """
        if processes == 1 or self.on_device or self.source == "max_memory_gb":
            return self
        share = self.used_bytes + self.free_bytes // processes
        return Limit(share, f"{self.source}, for each of {processes} processes")

    def __str__(self) -> str:
        """
        >>> str(Limit(8_000_000_000, "max_memory_gb"))
        '8.00 GB (max_memory_gb)'
        """
        return f"{show_gb(self.bytes)} ({self.source})"


CGROUP_VERSIONS = (
    ("", "", "memory.max", ("anon", "shmem")),
    ("memory", "memory", "memory.limit_in_bytes", ("total_rss", "total_shmem")),
)
"""For versions 2 and 1: the controller's name in /proc/self/cgroup, its folder, the file of the
limit, and keys of `memory.stat` for memory that cannot be reclaimed, child groups included. The
page cache is not counted: the kernel reclaims it when the group reaches its limit."""


@dataclass(frozen=True)
class CgroupTree:
    """Where the kernel shows the control groups, and which of them this process belongs to."""

    root: Path = Path("/sys/fs/cgroup")
    membership: Path = Path("/proc/self/cgroup")

    def limits(self) -> list[tuple[int, int | None]]:
        """Return every memory limit that binds this process, and what its group uses, None if
        unknown.

        Empty outside Linux and without limits.
        """
        try:
            lines = self.membership.read_text().splitlines()
        except OSError:
            lines = []
        parts = [line.split(":", 2) for line in lines if line.count(":") >= 2]
        paths = {name: path for _, names, path in parts for name in names.split(",")}
        found = []
        for controller, folder, name, keys in CGROUP_VERSIONS:
            for group in _with_ancestors(paths.get(controller, "")):
                place = self.root / folder / group
                with suppress(OSError):  # of the host, seen from a container
                    limit = (place / name).read_text().strip()
                    if limit.isdigit():  # else there is none: max
                        found.append((int(limit), _used_bytes(place / "memory.stat", keys)))
        return found


def _used_bytes(file: Path, keys: tuple[str, ...]) -> int | None:
    try:
        stat = {key: int(value) for key, value in map(str.split, file.read_text().splitlines())}
    except (OSError, ValueError):
        return None
    return sum(stat.get(key, 0) for key in keys)


def _with_ancestors(path: str) -> Iterator[str]:
    """Yield a group and the groups around it, the root last.

    In a container the path is often that of the host. Its folders do not exist inside, but the
    root does: it is the container's own group.

    >>> list(_with_ancestors("/job/step"))
    ['job/step', 'job', '']
    """
    group = PurePosixPath(path.lstrip("/"))
    if ".." in group.parts:  # outside the cgroup namespace, where nothing can be read
        group = PurePosixPath()
    for each in (group, *group.parents):
        if each.parts:
            yield str(each)
    yield ""


_THIS_SYSTEM = CgroupTree()


def find_limit(
    max_memory_gb: float | None = None,
    device_memory_gb: float | None = None,
    *,
    host: bool = False,
    cgroups: CgroupTree = _THIS_SYSTEM,
) -> Limit:
    """Return the memory limit of a run.

    `device_memory_gb` is the limit of a planned device, whatever this machine has. Otherwise the
    limit is the free memory of the CUDA device, or, without one, of this machine and its control
    groups; `max_memory_gb` can lower it. `host` asks for host memory even if there is a device.

    >>> find_limit(device_memory_gb=24)
    Limit(bytes=24000000000, source='device_memory_gb', on_device=True)
    """
    if device_memory_gb is not None and not host:
        return Limit(to_bytes(device_memory_gb), PLANNED_DEVICE, on_device=True)
    found = (None if host else _cuda_limit()) or _host_limit(cgroups)
    if max_memory_gb is not None and to_bytes(max_memory_gb) < found.bytes:
        return Limit(to_bytes(max_memory_gb), "max_memory_gb", found.on_device)
    return found


def free_for_children(max_memory_gb: float | None) -> int:
    """Return what is free within the limit, once freed heap memory is back with the system.

    A child that allocates would copy the free pages of its parent.
    """
    trim_heap()
    return find_limit(max_memory_gb, host=True).free_bytes


def _cuda_limit() -> Limit | None:
    import torch

    if not torch.cuda.is_available():
        return None
    free, _ = torch.cuda.mem_get_info()
    return Limit(free + torch.cuda.memory_reserved(), "free on the CUDA device", on_device=True)


def _host_limit(cgroups: CgroupTree) -> Limit:
    """Return tightest limit: free memory of the machine, and of every control group around us."""
    import psutil

    own = anonymous_bytes()
    sharing = num_on_host()  # a host's free memory is for all processes that train on it
    share = f", for each of {sharing} processes" if sharing > 1 else ""
    available = psutil.virtual_memory().available // sharing
    limits = [Limit(available + own, f"free on this machine{share}")]
    for limit_bytes, used_bytes in cgroups.limits():
        used = own if used_bytes is None else used_bytes
        free = max(limit_bytes - used, 0) // sharing
        source = f"free in this container (cgroup){share}"
        limits.append(Limit(min(free + own, limit_bytes), source))
    return min(limits, key=lambda limit: limit.bytes)


@dataclass(frozen=True)
class Device:
    """A kind of accelerator, with the figures of its maker; somewhat less memory is free."""

    memory_gb: float
    bf16: bool = True
    """Whether it computes in bfloat16; those that emulate it do not count."""


DEVICES = {
    "t4-16gb": Device(16, bf16=False),
    "v100-16gb": Device(16, bf16=False),
    "v100-32gb": Device(32, bf16=False),
    "p100-16gb": Device(16, bf16=False),
    "a10-24gb": Device(24),
    "l4-24gb": Device(24),
    "l40s-48gb": Device(48),
    "rtx3090-24gb": Device(24),
    "rtx4090-24gb": Device(24),
    "rtx5090-32gb": Device(32),
    "a6000-48gb": Device(48),
    "a100-40gb": Device(40),
    "a100-80gb": Device(80),
    "h100-80gb": Device(80),
    "h200-141gb": Device(141),
    "b200-192gb": Device(192),
    "mi250-128gb": Device(128),
    "mi300x-192gb": Device(192),
}
"""Devices that `check --device NAME` plans for where they are not."""
OF_THIS_MACHINE = ("mps", "cpu", "cuda", "gpu", "xpu", "hpu", "auto")
"""What other programs call a device that is here; torch chooses it."""


def find_device(name: str) -> Device:
    """Return the device of a name; refuse another one with those that are known.

    >>> find_device("A100-80GB").memory_gb
    80
    """
    known = name.strip().lower().replace("_", "-").replace(" ", "-")
    if known in DEVICES:
        return DEVICES[known]
    near = [each for each in DEVICES if each.startswith(f"{known}-")]
    near = near or get_close_matches(known, DEVICES, 1)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    if known in OF_THIS_MACHINE:
        hint = "The devices of this machine need no --device: leave it out. "
    raise UsageError(
        f"The device {name!r} is not known.",
        f"{hint}Known are {', '.join(DEVICES)}; for any other: --set device_memory_gb=….",
    )
