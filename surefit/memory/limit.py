"""The memory limit of a run: one function that planning, loaders and messages ask."""

from __future__ import annotations

from dataclasses import dataclass

from surefit.gigabytes import show_gb, to_bytes
from surefit.memory.cgroups import CgroupTree
from surefit.memory.process_memory import anonymous_bytes
from surefit.processes import num_on_host

DEVICE_CONTEXT_BYTES = 500_000_000
"""Device memory that a CUDA process uses before its first tensor: the context and kernels."""
PLANNED_DEVICE = "device_memory_gb"
"""The source of the limit of a device that is not here."""

_THIS_SYSTEM = CgroupTree()


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
        """The limit of each of the processes that a host would run; a device has one of them.

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


def find_limit(
    max_memory_gb: float | None = None,
    device_memory_gb: float | None = None,
    *,
    host: bool = False,
    cgroups: CgroupTree = _THIS_SYSTEM,
) -> Limit:
    """The memory limit of a run.

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


def _cuda_limit() -> Limit | None:
    import torch

    if not torch.cuda.is_available():
        return None
    free, _ = torch.cuda.mem_get_info()
    return Limit(free + torch.cuda.memory_reserved(), "free on the CUDA device", on_device=True)


def free_on_cuda(index: int) -> int:
    """Free memory of one of the CUDA devices."""
    import torch

    return int(torch.cuda.mem_get_info(index)[0])


def _host_limit(cgroups: CgroupTree) -> Limit:
    """The tightest limit: free memory of the machine, and of every control group around us."""
    import psutil

    own = anonymous_bytes()
    sharing = num_on_host()  # a host's free memory is for all processes that train on it
    share = f", for each of {sharing} processes" if sharing > 1 else ""
    available = psutil.virtual_memory().available // sharing
    limits = [Limit(available + own, f"free on this machine{share}")]
    for group in cgroups.limits():
        used = own if group.used_bytes is None else group.used_bytes
        free = max(group.limit_bytes - used, 0) // sharing
        source = f"free in this container (cgroup){share}"
        limits.append(Limit(min(free + own, group.limit_bytes), source))
    return min(limits, key=lambda limit: limit.bytes)
