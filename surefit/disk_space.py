"""What is free on the file system of a folder, and what a folder takes."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path


def free_bytes(path: Path) -> int:
    """What this user may still write on the file system of a path that need not exist yet."""
    return shutil.disk_usage(existing_place(path)).free


def existing_place(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if os.path.exists(place))


def size_of(path: Path) -> int:
    """The bytes of a file, or of all files in a folder; 0 if there is none."""
    total = 0
    for each in (path, *path.rglob("*")):
        with suppress(FileNotFoundError):  # deleted meanwhile
            about = each.lstat()
            total += about.st_size if stat.S_ISREG(about.st_mode) else 0
    return total
