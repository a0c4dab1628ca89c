"""A folder for trials beside a run's output: removed afterwards, and swept after a kill."""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from surefit.disk_space import existing_place
from surefit.errors import UsageError
from surefit.run.run_lock import lock_run

NAME = re.compile(r"\..+\.scratch\.[0-9a-f]{8}\.tmp")
YOUNG_SECONDS = 60.0
"""A younger folder may belong to a process that has not locked it yet."""


@contextmanager
def scratch_folder(output: Path) -> Iterator[Path]:
    """A new folder on the disk of `output`, removed when the block ends, however it ends."""
    place = existing_place(output.parent)
    place = place if os.access(place, os.W_OK | os.X_OK) else existing_place(output)
    sweep_scratch(place)
    folder = place / f".{output.name}.scratch.{uuid.uuid4().hex[:8]}.tmp"
    folder.mkdir()
    try:
        with lock_run(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep_scratch(place: Path) -> None:
    """Remove the scratch folders of killed processes; those of living ones are locked."""
    for path in place.glob(".*.tmp"):
        if not NAME.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        if time.time() - path.stat().st_mtime < YOUNG_SECONDS:
            continue
        with ExitStack() as held:
            try:
                held.enter_context(lock_run(path))
            except UsageError:  # in use
                continue
            shutil.rmtree(path, ignore_errors=True)
