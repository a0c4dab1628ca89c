"""Gigabytes, the unit of memory options and messages; what is free on a disk and a folder takes."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

GB = 10**9


def to_bytes(gigabytes: float) -> int:
    """Gigabytes as a whole number of bytes.

    >>> to_bytes(1.5)
    1500000000
    """
    return round(gigabytes * GB)


def show_gb(num_bytes: int) -> str:
    """Return bytes as messages print them.

    >>> show_gb(550_000_000)
    '0.55 GB'
    """
    return f"{num_bytes / GB:.2f} GB"


def show_size(num_bytes: int) -> str:
    """Return the size of a file or disk, in the unit that suits it.

    >>> show_size(5_550_000_000), show_size(3_140_000), show_size(2_000)
    ('5.55 GB', '3.1 MB', '2 kB')
    """
    if num_bytes >= GB // 10:
        return show_gb(num_bytes)
    return f"{num_bytes / 10**6:.1f} MB" if num_bytes >= 10**5 else f"{num_bytes / 1000:.0f} kB"


def free_bytes(path: Path) -> int:
    """What this user may still write on the file system of a path that need not exist yet."""
    return shutil.disk_usage(existing_place(path)).free


def existing_place(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if os.path.exists(place))


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 if there is none."""
    total = 0
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    for each in (path, *files):  # walk, unlike rglob, passes over folders deleted meanwhile
        with suppress(FileNotFoundError):
            about = each.lstat()
            total += about.st_size if stat.S_ISREG(about.st_mode) else 0
    return total
