"""Folders of `.npy` files with one array per row: one column, whose rows may be ragged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.data.cache import fingerprint
from surefit.data.column_types import CHANNELS
from surefit.data.data_rules import WRONG_SHAPE
from surefit.data.file_identity import content_hashes
from surefit.data.formats.cached_array import cached_array
from surefit.data.formats.numpy_files import map_npy, ragged_column, shape_of, to_arrow
from surefit.data.formats.opened import Opened
from surefit.findings import Finding, note, rule

SHARDS_OR_ROWS = rule(
    "SF173",
    "warning",
    "arrays that may be rows or shards",
    why=(
        "All files have one shape [n, m]. Read as shards, each has n rows of m numbers; each file "
        "may also be one row with the sequence length n."
    ),
    fix=(
        "If each file is one row, save them as one array: numpy.save('rows.npy', "
        "numpy.stack([numpy.load(f) for f in sorted(pathlib.Path('FOLDER').glob('*.npy'))]))."
    ),
    accept="The files are read as shards.",
)

Shape = tuple[int, ...]
_SHARD_WORDS = ("shard", "part", "chunk", "batch", "split", "fold", "-of-")
_MANY_FILES = 8


def open_per_row(files: Sequence[Path]) -> Opened | None:
    """The files as one row each, in the column `features` or `image`; None if they are shards."""
    shapes = [shape_of(file) for file in files]
    known = [shape for shape in shapes if shape is not None]
    if len(files) < 2 or len(known) < len(files):
        return None  # a file that cannot be read is reported when it is opened
    if are_rows(known) or (_are_ragged(known) and not _named_as_shards(files)):
        name, column = join_files(files, known)
        shown = f"{files[0].parent}: each of the {len(files)} files is one row"
        said = note(f"{shown}, {_spread(known)}.", file=str(files[0].parent))
        return Opened(pa.table({name: column}), (said,))
    return None


def are_rows(shapes: Sequence[Shape]) -> bool:
    """Whether each shape is that of one row: a vector, an image, or more files than steps."""
    ranks = {len(shape) for shape in shapes}
    if ranks == {1}:
        return True
    if ranks == {3}:
        widths = {shape[1] for shape in shapes}
        if {shape[2] for shape in shapes} <= {*CHANNELS} and min(widths) >= 8:
            return True
        return len({*shapes}) == 1 and len(shapes) > max(shapes[0])  # images of many channels
    return ranks == {2} and len(shapes) > max(shape[0] for shape in shapes)


def _are_ragged(shapes: Sequence[Shape]) -> bool:
    """Whether matrices vary in length as sequences do: shards differ in the last one only."""
    lengths = Counter(shape[0] for shape in shapes)
    usual = max(lengths, key=lambda length: (lengths[length], length))
    odd = len(shapes) - lengths[usual]
    return {len(shape) for shape in shapes} == {2} and odd > 1 and len(shapes) >= 4


def _named_as_shards(files: Sequence[Path]) -> bool:
    return all(any(word in file.stem.lower() for word in _SHARD_WORDS) for file in files)


def doubtful_shards(files: Sequence[Path]) -> tuple[Finding, ...]:
    """A warning for many matrices of one shape, which may be rows as well as shards."""
    if len(files) < _MANY_FILES or _named_as_shards(files):
        return ()
    shapes = {shape_of(file) for file in files}
    shape = shapes.pop() if len(shapes) == 1 else None
    if shape is None or len(shape) != 2:
        return ()
    folder = str(files[0].parent)
    message = (
        f"{folder}: {len(files)} arrays of shape {list(shape)} are read as "
        f"{len(files) * shape[0]} rows of {shape[1]} numbers."
    )
    fix = SHARDS_OR_ROWS.fix.replace("FOLDER", folder)
    return (SHARDS_OR_ROWS.finding(message, fix=fix, file=folder),)


def join_files(files: Sequence[Path], shapes: Sequence[Shape]) -> tuple[str, pa.Array]:
    """One row per file: a column of arrays, `image` where they are images, else `features`."""
    first = shapes[0]
    is_image = len(first) == 3 and first[2] in CHANNELS
    if len({*shapes}) == 1:
        return "image" if is_image else "features", to_arrow(_joined(files, shapes, stack=True))
    for file, shape in zip(files, shapes, strict=True):
        if shape[1:] != first[1:] or len(shape) != len(first):
            if not is_image and len(shape) == 2 == len(first) and shape[0] == first[0]:
                return "features", _join_turned(files, shapes)
            raise WRONG_SHAPE.error(
                f"{file.name} has the shape {list(shape)}, but {files[0].name} has {list(first)}; "
                "only the first axis may vary.",
                fix="Save all arrays with one feature size, or resize the images to one size.",
                file=str(file),
            )
    offsets = np.cumsum([0, *(shape[0] for shape in shapes)])
    return "features", ragged_column(_joined(files, shapes), offsets)


def _join_turned(files: Sequence[Path], shapes: Sequence[Shape]) -> pa.Array:
    """Rows [feature size, sequence length] as lists of channels; the layout transposes them."""
    channels = shapes[0][0]
    sizes = np.repeat([shape[1] for shape in shapes], channels)
    flat = ragged_column(_joined(files, shapes, flat=True), np.cumsum([0, *sizes]))
    offsets = np.arange(len(files) + 1, dtype=np.int64) * channels
    return pa.LargeListArray.from_arrays(pa.array(offsets), flat)


def _joined(
    files: Sequence[Path], shapes: Sequence[Shape], stack: bool = False, flat: bool = False
) -> npt.NDArray[Any]:
    """All values in one array, written to the cache once: mapping every file would take a map each.

    Each file is one row with `stack`; its values have one axis with `flat`.
    """

    def parts() -> Any:
        for file in files:
            array = map_npy(file, str(file))
            yield array[None] if stack else array.reshape(-1) if flat else array

    def fill(target: Path) -> None:
        dtype = np.result_type(*{map_npy(file, str(file)).dtype for file in files})
        sizes = [1 if stack else int(np.prod(s)) if flat else s[0] for s in shapes]
        rest = shapes[0] if stack else () if flat else shapes[0][1:]
        values = np.lib.format.open_memmap(target, "w+", dtype, (sum(sizes), *rest))
        at = 0
        for part, size in zip(parts(), sizes, strict=True):
            values[at : at + size] = part
            at += size
        values.flush()

    key = fingerprint("rows", stack, flat, content_hashes([str(f) for f in files]))
    return cached_array(key, fill)


def _spread(shapes: Sequence[Shape]) -> str:
    lengths = [shape[0] for shape in shapes]
    if len({*shapes}) == 1:
        return f"an array of shape {list(shapes[0])}"
    rest = f" by {', '.join(map(str, shapes[0][1:]))}" if len(shapes[0]) > 1 else ""
    return f"with {min(lengths)} to {max(lengths)} steps{rest}"
