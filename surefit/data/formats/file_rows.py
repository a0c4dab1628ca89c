"""Files that are one row each, with the label in their names if `label_from` says where."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from surefit.config import Reading
from surefit.data.file_kinds import FileKind, kind_of
from surefit.data.formats.file_contents import read_contents
from surefit.data.formats.opened import Opened
from surefit.errors import UsageError


def media_kind(path: Path) -> FileKind | None:
    """The kind of an image or audio file, which is a row wherever it is; None for others."""
    kind = kind_of(path)
    return kind if kind is not None and kind.decoded and not path.is_dir() else None


def open_media(path: Path, reading: Reading) -> Opened:
    """One image or audio file, by its path."""
    kind = media_kind(path)
    assert kind is not None
    return read_contents([path], kind, reading)


def open_file_rows(files: Sequence[Path], reading: Reading, to_train: bool) -> Opened | None:
    """Images, audio, and other files whose names have labels, as one row each; None for others.

    Rows to train on need a label from each name; of others, the labels are left out if some names
    have none.
    """
    kinds = {kind_of(file) for file in files}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None or not (kind.decoded or reading.label_from):
        if reading.label_from and to_train:
            raise _not_rows(files)
        return None
    opened = read_contents(files, kind, reading)
    labels = _labels(files, reading.label_from, to_train) if reading.label_from else None
    if labels is None:
        return opened
    return Opened(opened.arrow.append_column("label", pa.array(labels)), opened.findings)


def _not_rows(files: Sequence[Path]) -> UsageError:
    odd = next((file for file in files if kind_of(file) is None), files[-1])
    return UsageError(
        "label_from takes labels from the names of files that are a row each: images, audio, .npy "
        f"arrays or .txt texts, all of one kind; {odd.name} is not.",
        "Leave label_from out, or name the column with columns.label.",
    )


def _labels(files: Sequence[Path], pattern: str, to_train: bool) -> list[str] | None:
    """What the pattern's first group matches in each name."""
    matches = [re.search(pattern, file.name) for file in files]
    odd = next((f for f, match in zip(files, matches, strict=True) if match is None), None)
    if odd is None:
        return [match.group(1) for match in matches if match is not None]
    if to_train:
        raise UsageError(
            f"label_from {pattern!r} does not match the file name {odd.name!r}.",
            "Correct the pattern; its first group is the label.",
        )
    return None
