"""Arrays in several files: one row each, or shards, which get one shape and type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.data.arrow_types import in_cache
from surefit.data.cache import fingerprint
from surefit.data.cache_entry import content_hashes, file_fingerprint
from surefit.data.column_types import (
    CHANNELS,
    FLOAT_NAMES,
    describe_type,
    is_array,
    list_axes,
    nested_list,
)
from surefit.data.data_rules import FILES_DO_NOT_MATCH, ROWS_RESHAPED, WRONG_SHAPE
from surefit.data.formats.numpy_files import (
    Shape,
    concatenate,
    map_npy,
    nested_column,
    odd_shape,
    shape_of,
)
from surefit.data.formats.opened import Opened, labels_beside
from surefit.data.table import CHUNK_ROWS
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

SHOWN_FILES = 3
_SHARD_WORDS = ("shard", "part", "chunk", "batch", "split", "fold", "-of-")
_MANY_FILES = 8


def open_per_row(files: Sequence[Path]) -> Opened | None:
    """Several `.npy` files as one row each, `features` or `image`; None if they are shards."""
    if any(file.suffix != ".npy" or labels_beside(file) for file in files):
        return None
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
    """Return a warning for many matrices of one shape, which may be rows as well as shards."""
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
    """Return one row per file: a column of arrays, `image` where they are images, else `features`.

    All values are written to the cache once: mapping every file would take a map each.
    """
    first = shapes[0]
    is_image = len(first) == 3 and first[2] in CHANNELS
    odd = odd_shape(shapes)
    if odd is not None:
        raise WRONG_SHAPE.error(
            f"{files[odd].name} has the shape {list(shapes[odd])}, but {files[0].name} has "
            f"{list(first)}; only the first axis may vary.",
            fix="Save all arrays with one feature size, or resize the images to one size.",
            file=str(files[odd]),
        )
    arrays = (map_npy(file, str(file)) for file in files)
    dtype = np.result_type(*{map_npy(file, str(file)).dtype for file in files})
    key = fingerprint("rows", content_hashes([str(file) for file in files]))
    column = nested_column(concatenate(arrays, shapes, dtype, key), shapes)
    return "image" if is_image and len({*shapes}) == 1 else "features", column


def _spread(shapes: Sequence[Shape]) -> str:
    lengths = [shape[0] for shape in shapes]
    if len({*shapes}) == 1:
        return f"an array of shape {list(shapes[0])}"
    rest = f" by {', '.join(map(str, shapes[0][1:]))}" if len(shapes[0]) > 1 else ""
    return f"with {min(lengths)} to {max(lengths)} steps{rest}"


def align_shards(
    files: Sequence[Path], opened: Sequence[Opened]
) -> tuple[list[Opened], list[Finding]]:
    """Return the opened files with array columns of one type, and what was converted.

    Rows of different length become lists. Another dtype is written once to the cache, in chunks.
    """
    parts = list(opened)
    found: list[Finding] = []
    for name in parts[0].arrow.column_names:
        types = _types(name, parts)
        if types is None:
            continue
        kinds = [(axes, str(value)) for axes, value in map(list_axes, types)]
        inner = [(len(axes), *axes[1:]) for axes, _ in kinds]
        if len({*inner}) > 1:
            raise _disagrees(name, files, types, inner)
        dtypes = {dtype for _, dtype in kinds}
        common = list_axes(types[0])[1]
        if len(dtypes) > 1:
            common = pa.float32() if dtypes & FLOAT_NAMES.keys() else pa.int64()
        (axes, _), lengths = kinds[0], {axes[0] for axes, _ in kinds}
        kind = nested_list((axes[0] if len(lengths) == 1 else None, *axes[1:]), common)
        for place, (file, part) in enumerate(zip(files, parts, strict=True)):
            column = _aligned(file, name, part.arrow[name], kind)
            at = part.arrow.column_names.index(name)
            parts[place] = replace(part, arrow=part.arrow.set_column(at, name, column))
        other = [f for f, (_, dtype) in zip(files, kinds, strict=True) if dtype != str(common)]
        if other:
            shown = ", ".join(file.name for file in other[:SHOWN_FILES])
            shown += f" and {len(other) - SHOWN_FILES} more" * (len(other) > SHOWN_FILES)
            read = FLOAT_NAMES.get(str(common), str(common))
            message = f"{shown}: the numbers of column {name!r} are read as {read}."
            fix = "Save all files with one type to avoid this note."
            found.append(ROWS_RESHAPED.finding(message, fix=fix, file=str(other[0]), column=name))
    return parts, found


def _types(name: str, parts: Sequence[Opened]) -> list[pa.DataType] | None:
    """Return the types of a column, if all files have arrays in it, of several types."""
    if not all(name in part.arrow.column_names for part in parts):
        return None
    types = [part.arrow.schema.field(name).type for part in parts]
    missing = any(part.arrow[name].null_count for part in parts)
    if missing or len({*types}) == 1 or not all(map(is_array, types)):
        return None
    is_ragged_inside = any(None in list_axes(kind)[0][1:] for kind in types)
    return None if is_ragged_inside else types


def _disagrees(
    name: str, files: Sequence[Path], types: Sequence[pa.DataType], inner: Sequence[object]
) -> Exception:
    """Return the error about the first file whose rows have other axes than those of most files."""
    usual = inner.index(Counter(inner).most_common(1)[0][0])
    odd = next(place for place, axes in enumerate(inner) if axes != inner[usual])
    message = (
        f"column {name!r} holds {describe_type(types[odd])} in {files[odd].name}, but "
        f"{describe_type(types[usual])} in {files[usual].name}."
    )
    fix = "Save it with the axes of the others (reshape, swapaxes), or leave the file out."
    return FILES_DO_NOT_MATCH.error(message, fix=fix, file=str(files[odd]), column=name)


def _aligned(file: Path, name: str, column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    """Return a column in another type; numbers of another dtype are written once to the cache."""
    if list_axes(column.type)[1] == list_axes(kind)[1]:
        return column.cast(kind)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in pa.table({name: column}).to_batches(max_chunksize=CHUNK_ROWS):
            values = batch.column(0).cast(kind, safe=False)  # encoding reports what is too large
            yield pa.RecordBatch.from_arrays([values], [name])

    key = fingerprint("shard", file_fingerprint(file), name, str(kind))
    return in_cache(key, pa.schema([(name, kind)]), str(file), batches)[name]
