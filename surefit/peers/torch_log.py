"""What torch's C++ code prints about connections: pages of stack frames, which errors repeat."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

LEVEL = "TORCH_CPP_LOG_LEVEL"
"""torch reads it when it is imported."""
TALKATIVE = ("INFO", "WARNING", "0", "1")
STDERR = 2


def hush_torch(debug: bool) -> None:
    """Let torch print errors only, unless the user has chosen a level; with `debug`, warnings."""
    os.environ.setdefault(LEVEL, "WARNING" if debug else "ERROR")


@contextmanager
def without_torch_log() -> Iterator[None]:
    """Drop what is printed to stderr in the block, whose failure is raised as an exception.

    Nothing is dropped if warnings of torch are asked for, as `--debug` does.
    """
    if os.environ.get(LEVEL, "").upper() in TALKATIVE:
        yield
        return
    try:
        kept = os.dup(STDERR)
    except OSError:  # closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDERR)
    try:
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
        os.close(nowhere)
