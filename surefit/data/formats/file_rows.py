"""Files that are one row each, with the label in their names if `label_from` says where."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from surefit.config import Reading
from surefit.data.column_types import IMAGE_ENDINGS
from surefit.data.formats.array_files import join_files
from surefit.data.formats.numpy_files import map_npy, shape_of
from surefit.data.formats.opened import Opened
from surefit.errors import UsageError


def is_image(path: Path) -> bool:
    """Whether a file has the ending of an image, and is not hidden."""
    name = path.name.lower()
    return name.endswith(IMAGE_ENDINGS) and not name.startswith(".") and not path.is_dir()


def open_image(path: Path, reading: Reading) -> Opened:
    """One image, by its path."""
    return _images([path])


def open_file_rows(files: Sequence[Path], reading: Reading, to_train: bool) -> Opened | None:
    """Images, and arrays whose names have labels, as one row per file; None for other files.

    Rows to train on need a label from each name; of others, the labels are left out if some names
    have none.
    """
    if files and all(is_image(file) for file in files):
        opened = _images(files)
    elif reading.label_from and files and all(file.suffix == ".npy" for file in files):
        shapes = [shape_of(file) or map_npy(file, str(file)).shape for file in files]
        name, column = join_files(files, shapes)
        opened = Opened(pa.table({name: column}))
    else:
        if reading.label_from and to_train:
            raise UsageError(
                f"label_from takes labels from the names of images or .npy arrays; {files[0].name} "
                "is neither.",
                "Leave label_from out, or name the column with columns.label.",
            )
        return None
    labels = _labels(files, reading.label_from, to_train) if reading.label_from else None
    if labels is None:
        return opened
    return Opened(opened.arrow.append_column("label", pa.array(labels)), opened.findings)


def _images(files: Sequence[Path]) -> Opened:
    paths = [str(file.resolve()) for file in files]
    return Opened(pa.table({"image": pa.array(paths, pa.string())}))


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
