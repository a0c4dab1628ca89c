"""Several files that are read together: source and target, one per class, and empty ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from surefit.data.data_rules import FILES_DO_NOT_MATCH
from surefit.data.formats.opened import Opened
from surefit.findings import Finding, note, rule

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
        said = note(message, file=str(files[0]))
        before = [found for part in opened for found in part.findings if found.code]
        return (Opened(joined, (*before, said)),)
    if _stem(files[0]) == _stem(files[1]):
        raise FILES_DO_NOT_MATCH.error(
            f"{shown}; source and target must have the same number of lines.",
            fix="Align the files line by line.",
            file=str(files[1]),
            line=min(counts) + 1,
        )
    if not all(counts):
        return tuple(opened)
    said = TEXTS_OF_DIFFERENT_LENGTH.finding(f"{shown}: they are concatenated.", file=str(files[0]))
    return (first, Opened(second.arrow, (*second.findings, said)))


def _stem(path: Path) -> str:
    """The path without its endings: train.en.gz and train.de.gz have the same stem."""
    return Path(str(path).removesuffix(".gz")).stem


def label_texts(files: Sequence[Path], opened: Sequence[Opened]) -> list[Opened] | None:
    """Several files of lines with a column `label`, named after the files; None for others."""
    if len(files) < 2 or any(part.arrow.column_names != ["text"] for part in opened):
        return None
    names = class_names(files)
    shown = ", ".join(f"{name!r} from {file.name}" for name, file in zip(names, files, strict=True))
    said = note(f"The classes are {shown[:300]}.", file=str(files[0]))
    labelled = []
    for place, (part, name) in enumerate(zip(opened, names, strict=True)):
        label = pa.array([name]).cast(pa.string()).take(pa.array([0] * part.arrow.num_rows))
        found = [f for f in part.findings if f.code]
        notes = (said, *found) if place == 0 else tuple(found)
        labelled.append(Opened(part.arrow.append_column("label", label), notes))
    return labelled


def class_names(files: Sequence[Path]) -> list[str]:
    """What tells the names of the files apart, word by word from both ends.

    >>> class_names([Path("rt-polarity.pos"), Path("rt-polarity.neg")])
    ['pos', 'neg']
    >>> class_names([Path("spam.train.txt"), Path("ham.train.txt")])
    ['spam', 'ham']
    """
    names = [file.name.removesuffix(".gz") for file in files]
    names = [name.removesuffix(".txt") for name in names]
    words = [name.split(".") for name in names]
    while min(map(len, words)) > 1 and len({each[0] for each in words}) == 1:
        words = [each[1:] for each in words]
    while min(map(len, words)) > 1 and len({each[-1] for each in words}) == 1:
        words = [each[:-1] for each in words]
    found = [".".join(each) for each in words]
    return found if len({*found}) == len(files) else [str(file) for file in files]


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
