"""One text file per class: each line is a row, and the file's name is its label."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from surefit.data.formats.opened import Opened
from surefit.data.formats.text_lines import LINE_LAYOUT_INFERRED
from surefit.findings import rule

FILE_IS_A_CLASS = rule(
    "SF175",
    "info",
    "each text file is a class",
    why="Several text files for a classification are read as one class each.",
    fix="Nothing to do; pass a table with a label column if the files are not classes.",
)


def label_texts(files: Sequence[Path], opened: Sequence[Opened]) -> list[Opened] | None:
    """Several files of lines with a column `label`, named after the files; None for others."""
    if len(files) < 2 or any(part.arrow.column_names != ["text"] for part in opened):
        return None
    names = class_names(files)
    shown = ", ".join(f"{name!r} from {file.name}" for name, file in zip(names, files, strict=True))
    note = FILE_IS_A_CLASS.finding(f"The classes are {shown[:300]}.", file=str(files[0]))
    labelled = []
    for place, (part, name) in enumerate(zip(opened, names, strict=True)):
        label = pa.array([name]).cast(pa.string()).take(pa.array([0] * part.arrow.num_rows))
        found = [f for f in part.findings if f.code != LINE_LAYOUT_INFERRED.code]
        notes = (note, *found) if place == 0 else tuple(found)
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
