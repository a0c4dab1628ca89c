"""Two parallel text files: a source and its target, line by line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from surefit.data.data_rules import FILES_DO_NOT_MATCH, FILES_JOINED
from surefit.data.formats.opened import Opened
from surefit.data.formats.text_lines import LINE_LAYOUT_INFERRED
from surefit.findings import rule

TEXTS_OF_DIFFERENT_LENGTH = rule(
    "SF117",
    "warning",
    "two text files of different length",
    why="Source and target need the same number of lines; these files are concatenated instead.",
    fix="Align the files line by line if one is the translation of the other.",
    accept="The files are concatenated.",
)


def pair_texts(files: Sequence[Path], opened: Sequence[Opened]) -> tuple[Opened, ...]:
    """Two text files with the same number of lines as columns `source` and `target`.

    Others are returned unchanged with a warning, or refused if their names are a pair. An empty
    file has no column.
    """
    counts = [part.arrow.num_rows for part in opened]
    texts = all(part.arrow.column_names in (["text"], []) for part in opened)
    if len(files) != 2 or not texts or not any(counts):
        return tuple(opened)
    first, second = opened
    shown = f"{files[0].name} has {counts[0]} lines, {files[1].name} has {counts[1]}"
    if counts[0] == counts[1]:
        message = f"{shown}: they are read as source and target."
        joined = pa.table({"source": first.arrow["text"], "target": second.arrow["text"]})
        note = FILES_JOINED.finding(message, file=str(files[0]))
        before = [
            found
            for part in opened
            for found in part.findings
            if found.code != LINE_LAYOUT_INFERRED.code
        ]
        return (Opened(joined, (*before, note)),)
    if _stem(files[0]) == _stem(files[1]):
        raise FILES_DO_NOT_MATCH.error(
            f"{shown}; source and target must have the same number of lines.",
            fix="Align the files line by line.",
            file=str(files[1]),
            line=min(counts) + 1,
        )
    if not all(counts):
        return tuple(opened)
    note = TEXTS_OF_DIFFERENT_LENGTH.finding(f"{shown}: they are concatenated.", file=str(files[0]))
    return (first, Opened(second.arrow, (*second.findings, note)))


def _stem(path: Path) -> str:
    """The path without its endings: train.en.gz and train.de.gz have the same stem."""
    return Path(str(path).removesuffix(".gz")).stem
