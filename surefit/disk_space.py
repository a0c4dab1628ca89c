"""What is free on the file system of a folder, and which folders are on another one."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def free_bytes(path: Path) -> int:
    """What this user may still write on the file system of a path that need not exist yet."""
    return shutil.disk_usage(existing_place(path)).free


def existing_place(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if os.path.exists(place))


def on_other_disk(path: Path, others: Iterable[Path]) -> list[Path]:
    """Those of `others` that are on another file system than `path`."""
    here = existing_place(path).stat().st_dev
    return [each for each in others if existing_place(each).stat().st_dev != here]


def size_of(path: Path) -> int:
    """The bytes of a file, or of all files in a folder; 0 if there is none."""
    total = 0
    for each in (path, *path.rglob("*")):
        with suppress(FileNotFoundError):  # deleted meanwhile
            about = each.lstat()
            total += about.st_size if stat.S_ISREG(about.st_mode) else 0
    return total
