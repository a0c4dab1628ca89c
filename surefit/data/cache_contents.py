"""What the cache holds: its entries with sizes and last use; removing those not needed."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from surefit.data.cache import cache_folder
from surefit.data.cache_use import LEASES, TAG, in_use, open_cache, remove, sweep
from surefit.digests import FILE as DIGESTS
from surefit.findings import Finding, rule
from surefit.gigabytes import show_gb, to_bytes

CACHE_OVER_LIMIT = rule(
    "SF821",
    "warning",
    "the cache is larger than its limit",
    why="Entries that a process uses are not removed, and they alone take more than the limit.",
    fix="Raise cache_limit_gb, or leave it out.",
    accept="The cache stays larger than its limit.",
)


@dataclass(frozen=True)
class Entry:
    """One entry: its kind and name, the bytes of its files, and when it was last used."""

    kind: str
    name: str
    num_bytes: int
    last_used: float
    """Seconds since 1970."""
    in_use: bool

    @property
    def path(self) -> str:
        """The entry's place in the cache folder."""
        return f"{self.kind}/{self.name}" if self.kind else self.name


def list_entries() -> list[Entry]:
    """The entries of the cache, those that were not used for the longest time first."""
    root = cache_folder()
    if not root.is_dir():
        return []
    places: list[tuple[str, Path]] = []
    for path in root.iterdir():
        if path.is_dir() and path.name != LEASES:
            places += [(path.name, inner) for inner in path.iterdir()]
        elif path.name not in (LEASES, TAG):
            places.append(("", path))
    used = in_use(root)  # asked afterwards: an entry is noted before it is written
    found = [_entry(kind, path, used) for kind, path in places]
    return sorted(found, key=lambda entry: (entry.last_used, entry.path))


def _entry(kind: str, path: Path, used: set[str]) -> Entry:
    files = [path] if not path.is_dir() else [file for file in path.rglob("*") if file.is_file()]
    stats = [stat for file in files if (stat := _stat(file)) is not None]
    marked = _stat(path / DIGESTS) or _stat(path)
    # A half-written entry is .NAME.8 digits.tmp or .NAME.half.
    name = path.name.removeprefix(".").split(".")[0] if path.name.startswith(".") else path.name
    return Entry(
        kind,
        path.name,
        sum(stat.st_size // stat.st_nlink for stat in stats),  # entries may share files
        marked.st_mtime if marked is not None else 0.0,
        f"{kind}/{name}" in used,
    )


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def describe_cache() -> dict[str, Any]:
    """The cache as `surefit cache --json` prints it."""
    entries = list_entries()
    kinds: dict[str, dict[str, int]] = {}
    for entry in entries:
        about = kinds.setdefault(entry.kind or "other", {"entries": 0, "bytes": 0})
        about["entries"] += 1
        about["bytes"] += entry.num_bytes
    return {
        "ok": True,
        "folder": str(cache_folder()),
        "bytes": sum(entry.num_bytes for entry in entries),
        "kinds": kinds,
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
    chosen = [e for e in list_entries() if not e.in_use and e.last_used <= oldest]
    for entry in chosen:
        remove(root / entry.path)
    return len(chosen), sum(entry.num_bytes for entry in chosen)


def limit_cache(limit_gb: float) -> list[Finding]:
    """Remove the least recently used entries until the cache is within its limit."""
    limit, entries = to_bytes(limit_gb), list_entries()
    size = sum(entry.num_bytes for entry in entries)
    for entry in entries:
        if size <= limit:
            return []
        if not entry.in_use and entry.kind:
            remove(cache_folder() / entry.path)
            size -= entry.num_bytes
    if size <= limit:
        return []
    message = f"The cache holds {show_gb(size)} in use; cache_limit_gb is {limit_gb:g}."
    return [CACHE_OVER_LIMIT.finding(message, file=str(cache_folder()))]
