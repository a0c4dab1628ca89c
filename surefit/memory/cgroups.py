"""Memory limits of the Linux control groups (cgroups) of this process, version 1 and 2.

Containers (Docker, Kubernetes), batch systems (Slurm) and systemd limit memory by cgroups. A group
is bound by its own limit and by those of all groups around it, so every ancestor is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class CgroupMemory:
    """The memory limit of one control group, and the memory that its processes use."""

    limit_bytes: int
    used_bytes: int | None
    """Anonymous and shared memory; None if it cannot be read. The page cache is not counted: the
    kernel reclaims it when the group reaches its limit."""


@dataclass(frozen=True)
class CgroupTree:
    """Where the kernel shows the control groups, and which of them this process belongs to."""

    root: Path = Path("/sys/fs/cgroup")
    membership: Path = Path("/proc/self/cgroup")

    def limits(self) -> list[CgroupMemory]:
        """Every memory limit that binds this process; empty outside Linux and without limits."""
        memberships = self._memberships()
        return [
            limit
            for version in _VERSIONS
            for group in _with_ancestors(memberships.get(version.controller, ""))
            if (limit := version.read(self.root / version.folder / group)) is not None
        ]

    def _memberships(self) -> dict[str, str]:
        """The path of the group of this process, by controller; version 2 has the name ''."""
        try:
            lines = self.membership.read_text().splitlines()
        except OSError:
            return {}
        parts = [line.split(":", 2) for line in lines if line.count(":") >= 2]
        return {name: path for _, names, path in parts for name in names.split(",")}


@dataclass(frozen=True)
class _Version:
    """File names of the memory controller in one version of cgroups."""

    controller: str
    folder: str
    limit_file: str
    used_keys: tuple[str, ...]
    """Keys of `memory.stat` for memory that cannot be reclaimed, child groups included."""

    def read(self, group: Path) -> CgroupMemory | None:
        """The limit of a group; None if it has none (`max`) or does not exist here."""
        try:
            limit = (group / self.limit_file).read_text().strip()
        except OSError:
            return None
        return CgroupMemory(int(limit), self._used(group)) if limit.isdigit() else None

    def _used(self, group: Path) -> int | None:
        try:
            lines = (group / "memory.stat").read_text().splitlines()
            stat = {key: int(value) for key, value in map(str.split, lines)}
        except (OSError, ValueError):
            return None
        return sum(stat.get(key, 0) for key in self.used_keys)


_VERSIONS = (
    _Version("", "", "memory.max", ("anon", "shmem")),
    _Version("memory", "memory", "memory.limit_in_bytes", ("total_rss", "total_shmem")),
)


def _with_ancestors(path: str) -> Iterator[str]:
    """A group and the groups around it, the root last.

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
