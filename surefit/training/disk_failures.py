"""A disk that is full, read-only or failing, in words that help with this run."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surefit.errors import RunFailedError, SurefitError, message_of
from surefit.gigabytes import show_size
from surefit.run.run_folder import Run

FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_WORDS = tuple(os.strerror(code) for code in FULL)
"""Libraries that are not written in Python name the error without its number."""
FAILING = (errno.EROFS, errno.EIO)
FAILING_WORDS = tuple(os.strerror(code) for code in FAILING)
FORBIDDEN = (errno.EACCES, errno.EPERM, *FAILING)


def as_disk_failure(error: BaseException, run: Run) -> RunFailedError | None:
    """What a failed write means for the run; None for other errors."""
    code = error.errno if isinstance(error, OSError) else None
    if code in FULL or any(words in message_of(error) for words in FULL_WORDS):
        return _full(error, run)
    name = str(getattr(error, "filename", None) or "")
    is_ours = code in FORBIDDEN and name.startswith(str(run.path))
    words = next((words for words in FAILING_WORDS if words in message_of(error)), "")
    if not is_ours and code not in FAILING and not words:
        return None
    place = name if is_ours else run.path
    return RunFailedError(
        f"{place} cannot be written: {os.strerror(code) if code else words}. {_saved(run)}",
        f"Make it writable, then resume with: surefit train --resume {run.path}",
    )


@contextmanager
def report_disk(run: Run) -> Iterator[None]:
    """Turn a failed write in the block into a message about the run."""
    try:
        yield
    except Exception as error:
        failure = None if isinstance(error, SurefitError) else as_disk_failure(error, run)
        if failure is None:
            raise
        raise failure from error


def _full(error: BaseException, run: Run) -> RunFailedError:
    name = Path(str(getattr(error, "filename", None) or run.path))
    place = next((each for each in (name, *name.parents) if each.exists()), run.path)
    free = shutil.disk_usage(place).free
    return RunFailedError(
        f"The disk of {place} is full ({show_size(free)} free). {_saved(run)}",
        f"Free some space, then resume with: surefit train --resume {run.path}. `--set keep=1` "
        "keeps one checkpoint besides the best instead of two.",
    )


def _saved(run: Run) -> str:
    step = run.saved_step
    return f"The checkpoint of step {step} is intact." if step else "No step was saved."
