"""A run goes on in another folder: a copy of it, which leaves the run itself as it was."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from surefit.core import files
from surefit.core.locks import FILE
from surefit.errors import RunFailedError, UsageError
from surefit.run.run_folder import Run, choose_folder


def copy_run(run: Run, output: str) -> Run:
    """A copy of the run in `output`, which must be a new or an empty folder."""
    folder = choose_folder(output, "run")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(
            f"{folder} is not empty, so {run.path} cannot be resumed there.",
            "Choose another --output, or leave it out to resume in place.",
        )
    try:
        with files.new_folder(folder) as temporary:
            shutil.copytree(run.path, temporary, dirs_exist_ok=True, ignore=_left_out)
    except (OSError, shutil.Error) as error:
        raise RunFailedError(
            f"{run.path} cannot be copied to {folder}: {error}.",
            "Choose another --output, or leave it out to resume in place.",
        ) from None
    parts = (run.task_object, run.module_object, run.collate_fn, run.trust_code)
    return Run(folder, *parts, run.local, run.loss_fn)


def _left_out(folder: str, names: list[str]) -> list[str]:
    """Locks, what killed writes left, and links, which could lead out of the run."""
    return [
        name
        for name in names
        if name == FILE or files.TEMPORARY.fullmatch(name) or os.path.islink(Path(folder, name))
    ]
