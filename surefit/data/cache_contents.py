"""What the cache holds: its entries with sizes and last use; removing those not needed.

An entry is a folder with surefit's mark. What else is in the folder of the cache stays.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from surefit.core import files
from surefit.core.digests import FILE as DIGESTS
from surefit.data.cache import cache_folder, cache_limit_gb, in_use, kinds, open_cache, sweep
from surefit.findings import Finding, rule
from surefit.gigabytes import free_bytes, show_gb, to_bytes

CACHE_OVER_LIMIT = rule(
    "SF821",
    "warning",
    "the cache is larger than its limit",
    why="Entries that a process uses are not removed, and they alone take more than the limit.",
    fix="Raise cache_limit_gb, or leave it out.",
    accept="The cache stays larger than its limit.",
)


DISK_SHARE = 0.25
"""The part of the free disk that an entry may take that only saves time: runs need the rest."""


@dataclass(frozen=True)
class Entry:
    """One entry: its kind and name, the bytes of its files, and when it was last used."""

    kind: str
    name: str
    num_bytes: int
    last_used: float
    """Seconds since 1970."""

    @property
    def path(self) -> str:
        """The entry's place in the cache folder."""
        return f"{self.kind}/{self.name}"


def list_entries() -> list[Entry]:
    """Return the entries of the cache, those that were not used for the longest time first.

    An entry is a folder that surefit made with every file in it, and marked as such.
    """
    root = cache_folder()
    if not root.is_dir():
        return []
    places = [path for kind in kinds(root) for path in kind.glob("[!.]*")]
    found = [_entry(path) for path in places if files.is_own(path) and files.is_marked(path)]
    return sorted(found, key=lambda entry: (entry.last_used, entry.path))


def _entry(path: Path) -> Entry:
    held = [file for file in path.rglob("*") if file.is_file() and file.name != files.MARK]
    stats = [stat for file in held if (stat := _stat(file)) is not None]
    marked = _stat(path / DIGESTS) or _stat(path)
    return Entry(
        path.parent.name,
        path.name,
        sum(stat.st_size // stat.st_nlink for stat in stats),  # entries may share files
        marked.st_mtime if marked is not None else 0.0,
    )


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def describe_cache() -> dict[str, Any]:
    """Return the cache as `surefit cache --json` prints it."""
    entries = list_entries()
    held: dict[str, dict[str, int]] = {}
    for entry in entries:
        about = held.setdefault(entry.kind, {"entries": 0, "bytes": 0})
        about["entries"] += 1
        about["bytes"] += entry.num_bytes
    return {
        "ok": True,
        "folder": str(cache_folder()),
        "bytes": sum(entry.num_bytes for entry in entries),
        "kinds": held,
        "entries": [{**asdict(entry), "path": entry.path} for entry in reversed(entries)],
    }


def clean_cache(older_than_days: float | None = None) -> tuple[int, int]:
    """Remove all entries, or those not used for some days; none that is in use.

    Returns how many entries and bytes were removed.
    """
    root = cache_folder()
    if not root.is_dir():
        return 0, 0
    sweep(open_cache())
    oldest = time.time() - (older_than_days or 0) * 86_400
    removed = [e for e in list_entries() if e.last_used <= oldest and _remove(e)]
    return len(removed), sum(entry.num_bytes for entry in removed)


def limit_cache(limit_gb: float) -> list[Finding]:
    """Remove the least recently used entries until the cache is within its limit."""
    limit, entries = to_bytes(limit_gb), list_entries()
    size = sum(entry.num_bytes for entry in entries)
    for entry in entries:
        if size <= limit:
            return []
        if _remove(entry):
            size -= entry.num_bytes
    if size <= limit:
        return []
    message = f"The cache holds {show_gb(size)} in use; cache_limit_gb is {limit_gb:g}."
    return [CACHE_OVER_LIMIT.finding(message, file=str(cache_folder()))]


def limit_kind(kind: str, most: int) -> None:
    """Remove the least recently used entries of a kind beyond `most` of them."""
    entries = [entry for entry in list_entries() if entry.kind == kind]
    for entry in entries[: max(0, len(entries) - most)]:
        _remove(entry)


def has_room(num_bytes: int) -> bool:
    """Whether an entry that only saves time fits within the limit and leaves most of the disk."""
    limit_gb = cache_limit_gb()
    within = limit_gb is None or num_bytes <= to_bytes(limit_gb)
    return within and num_bytes <= DISK_SHARE * free_bytes(cache_folder())


def _remove(entry: Entry) -> bool:
    """Remove an entry, unless a process uses it."""
    folder = cache_folder() / entry.path
    return not in_use(folder, lambda: files.remove_folder(folder))
