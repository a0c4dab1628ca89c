"""Empty files among others, such as the empty parts that Spark writes: skipped, and named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from surefit.data.formats.opened import Opened
from surefit.findings import Finding, rule

EMPTY_FILE = rule(
    "SF439",
    "warning",
    "empty file among others",
    why="An empty file has no rows. Some programs write one for each empty part; it may also be "
    "what a program left that failed.",
    fix="Delete the file if it is meant to be empty; else write it again.",
    accept="The file is skipped; the others are read.",
)

SHOWN_FILES = 3


def without_empty(
    files: Sequence[Path], opened: Sequence[Opened]
) -> tuple[list[Path], Sequence[Opened], list[Finding]]:
    """The files without those that are empty, or have a header only; all, if all are so."""
    whole = [(file, part) for file, part in zip(files, opened, strict=False) if part.arrow.schema]
    if not whole or len(whole) == len(opened):
        return list(files), opened, []
    empty = [f for f, part in zip(files, opened, strict=True) if not part.arrow.schema]
    shown = ", ".join(file.name for file in empty[:SHOWN_FILES])
    shown += f" and {len(empty) - SHOWN_FILES:,} more" if len(empty) > SHOWN_FILES else ""
    message = f"{len(empty):,} of {len(files):,} files have no rows and are skipped: {shown}."
    note = EMPTY_FILE.finding(message, file=str(empty[0]))
    return [file for file, _ in whole], [part for _, part in whole], [note]
