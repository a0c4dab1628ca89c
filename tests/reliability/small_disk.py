"""A file system of a few pages, which can be filled and enlarged; needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PAGE = 4096


@contextmanager
def small_disk(folder: Path, size: str = "16m") -> Iterator[Path]:
    """Mount a tmpfs at `folder` while the block runs; skips where that is not possible."""
    folder.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def leave_pages(disk: Path, pages: int) -> Path:
    """Fill a disk but for some pages; the file that fills it."""
    filler = disk / "filler"
    free = os.statvfs(disk)
    with filler.open("wb") as file:
        for _ in range(free.f_bavail * free.f_frsize // PAGE - pages):
            file.write(b"\0" * PAGE)
    return filler
