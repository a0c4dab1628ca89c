"""Checks that all processes see one folder: each writes its share of a checkpoint into it."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from surefit.errors import UsageError
from surefit.findings import rule
from surefit.peers.process_names import host_name, name_process
from surefit.processes import gather, is_main, together

NO_COMMON_FOLDER = rule(
    "SF873",
    "error",
    "the processes do not share the run's folder",
    why="Each process writes its share of a checkpoint, and reads the shares that others wrote. On "
    "hosts without a common file system, no checkpoint would be whole.",
    fix="Choose an --output on a file system that all hosts share, such as NFS.",
)
SECONDS = 5.0
"""How long a network file system may take to show a new file."""


def check_common_folder(folder: Path) -> None:
    """Refuse a folder that is not the same one in all processes; it need not exist yet."""
    place = folder.absolute()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    probe = place / f".probe.{uuid.uuid4().hex[:8]}.tmp"
    with together("writing a file to test the folder"):
        if is_main():
            _write(probe)
    probe = gather(probe)[0]
    try:
        seen = gather((_can_read(probe), host_name()))
    finally:
        if is_main():
            probe.unlink(missing_ok=True)
    blind = [name_process(rank, host) for rank, (sees, host) in enumerate(seen) if not sees]
    if blind:
        raise NO_COMMON_FOLDER.error(
            f"Process 0 of host {seen[0][1]} wrote a file into {probe.parent}; "
            f"{', '.join(blind[:4])} cannot read it.",
            file=str(folder),
        )


def _write(probe: Path) -> None:
    try:
        probe.write_text(probe.name, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{probe.parent} cannot be written: {error.strerror}.",
            "Choose another --output, or make the folder writable.",
        ) from None


def _can_read(probe: Path) -> bool:
    began = time.monotonic()
    while True:
        try:
            os.listdir(probe.parent)  # a network file system looks again
            return probe.read_text(encoding="utf-8") == probe.name
        except OSError:
            if time.monotonic() - began > SECONDS:
                return False
        time.sleep(0.1)
