"""Arrays in several files: one row each, or shards, which get one shape and type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.data.cache import fingerprint
from surefit.data.cache_entry import content_hashes, file_fingerprint
from surefit.data.column_types import CHANNELS, FLOAT_NAMES, is_array
from surefit.data.data_rules import FILES_DO_NOT_MATCH, ROWS_RESHAPED, WRONG_SHAPE
from surefit.data.formats.numpy_files import (
    Shape,
    concatenate,
    map_npy,
    odd_shape,
    ragged_column,
    ragged_rows,
    shape_of,
    to_arrow,
)
from surefit.data.formats.opened import Opened, cached_array, write_in_chunks
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
_NUMPY: dict[str, Any] = {"float": np.float32, "int64": np.int64}


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
    """One row per file: a column of arrays, `image` where they are images, else `features`.

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
    if len({*shapes}) > 1:
        return "features", ragged_rows(shapes, arrays, dtype, key)
    stacked = concatenate((array[None] for array in arrays), (len(files), *first), dtype, key)
    return "image" if is_image else "features", to_arrow(stacked)


def _spread(shapes: Sequence[Shape]) -> str:
    lengths = [shape[0] for shape in shapes]
    if len({*shapes}) == 1:
        return f"an array of shape {list(shapes[0])}"
    rest = f" by {', '.join(map(str, shapes[0][1:]))}" if len(shapes[0]) > 1 else ""
    return f"with {min(lengths)} to {max(lengths)} steps{rest}"


@dataclass(frozen=True)
class Kind:
    """The rows of one file: the sizes of their axes, None where they vary, and their type."""

    sizes: tuple[int | None, ...]
    dtype: str
    rows: int

    def __str__(self) -> str:
        shown = ", ".join("*" if size is None else str(size) for size in self.sizes)
        return f"[{shown}] {FLOAT_NAMES.get(self.dtype, self.dtype)}"

    @property
    def squeezed(self) -> tuple[int | None, ...]:
        """The sizes of the axes without axes of length 1, but for two."""
        kept = list(self.sizes)
        while len(kept) > 2 and 1 in kept:
            kept.remove(1)
        return tuple(kept)

    def is_transposed(self, other: Kind) -> bool:
        """Whether rows become those of another kind by exchanging their axes."""
        return self.squeezed != other.sizes and self.squeezed[::-1] == other.sizes

    def fitted(self, width: int | None, dtype: str) -> Kind | None:
        """Return the kind that rows can be read as, with this feature size; None if they cannot."""
        sizes = self.squeezed
        if width is None:
            return Kind(sizes, dtype, self.rows) if len(sizes) == 1 else None
        if len(sizes) == 2 and sizes[1] == width:
            return Kind(sizes, dtype, self.rows)
        if len(sizes) == 2 and sizes[0] == width and sizes[1] is not None:
            return Kind(sizes[::-1], dtype, self.rows)
        if len(sizes) == 1 and sizes[0] is not None and sizes[0] % width == 0:
            return Kind((sizes[0] // width, width), dtype, self.rows)
        return None


def fit_kinds(kinds: Sequence[Kind]) -> list[Kind | None]:
    """The kind that each file is read as; None if its rows cannot get the common feature size.

    >>> fit_kinds([Kind((20, 271), "float", 9), Kind((271, 20), "float", 5)])[1].sizes
    (20, 271)
    >>> fit_kinds([Kind((20, 271), "float", 9), Kind((5420,), "float", 5)])[1].sizes
    (20, 271)
    """
    widths = Counter[int]()
    for kind in kinds:
        if len(kind.squeezed) == 2 and kind.squeezed[1] is not None:
            widths[kind.squeezed[1]] += kind.rows
    width = widths.most_common(1)[0][0] if widths else None
    floats = any("float" in kind.dtype or kind.dtype == "double" for kind in kinds)
    common = kinds[0].dtype if len({kind.dtype for kind in kinds}) == 1 else None
    return [kind.fitted(width, common or ("float" if floats else "int64")) for kind in kinds]


def align_shards(
    files: Sequence[Path], opened: Sequence[Opened]
) -> tuple[list[Opened], list[Finding]]:
    """The opened files with array columns of one shape and type, and what was converted.

    Reshaping is free. Transposing and type conversion write the array once to the cache, in chunks.
    """
    parts = list(opened)
    found: list[Finding] = []
    for name in parts[0].arrow.column_names:
        kinds = _kinds(name, parts)
        if kinds is None:
            continue
        fitted = fit_kinds(kinds)
        after = [kind for kind in fitted if kind is not None]
        if len(after) < len(kinds):
            raise _disagrees(name, files, kinds, fitted)
        found += _notes(files, name, kinds, after)
        ragged = len({kind.sizes[0] for kind in after}) > 1
        for place, (file, part) in enumerate(zip(files, parts, strict=True)):
            column = _changed(file, name, part.arrow, kinds[place], after[place], ragged)
            at = part.arrow.column_names.index(name)
            parts[place] = replace(part, arrow=part.arrow.set_column(at, name, column))
    return parts, found


def _kinds(name: str, parts: Sequence[Opened]) -> list[Kind] | None:
    """The kinds of a column if it is an array without missing rows in all files, of several types.

    Only the first axis may vary within a file.
    """
    if not all(name in part.arrow.column_names for part in parts):
        return None
    types = [part.arrow.schema.field(name).type for part in parts]
    missing = any(part.arrow[name].null_count for part in parts)
    if missing or len({*types}) == 1 or not all(map(is_array, types)):
        return None
    kinds = []
    for kind, part in zip(types, parts, strict=True):
        sizes = []
        while not pa.types.is_primitive(kind):
            sizes.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
            kind = kind.value_type
        kinds.append(Kind(tuple(sizes), str(kind), part.arrow.num_rows))
    return None if any(None in kind.sizes[1:] for kind in kinds) else kinds


def _disagrees(
    name: str, files: Sequence[Path], kinds: Sequence[Kind], fitted: Sequence[Kind | None]
) -> Exception:
    odd = fitted.index(None)
    other = next((at for at, kind in enumerate(fitted) if kind is not None), 0 if odd else 1)
    message = (
        f"rows of column {name!r} are {kinds[odd]} in {files[odd].name}, but {kinds[other]} in "
        f"{files[other].name}."
    )
    fix = "Leave the file out, or save it with the feature size of the others."
    return FILES_DO_NOT_MATCH.error(message, fix=fix, file=str(files[odd]), column=name)


def _notes(
    files: Sequence[Path], name: str, kinds: Sequence[Kind], after: Sequence[Kind]
) -> Iterator[Finding]:
    """One finding per conversion, with the first few files."""
    groups: dict[tuple[Kind, Kind], list[Path]] = {}
    for file, before, kind in zip(files, kinds, after, strict=True):
        if before != kind:
            groups.setdefault((replace(before, rows=0), replace(kind, rows=0)), []).append(file)
    for (before, kind), changed in groups.items():
        shown = ", ".join(file.name for file in changed[:SHOWN_FILES])
        more = f" and {len(changed) - SHOWN_FILES} more" if len(changed) > SHOWN_FILES else ""
        message = f"{shown}{more}: rows of column {name!r} are {before}, read as {kind}."
        fix = "Save all files with one shape and type to avoid this note."
        yield ROWS_RESHAPED.finding(message, fix=fix, file=str(changed[0]), column=name)


def _changed(
    file: Path, name: str, arrow: pa.Table, kind: Kind, after: Kind, ragged: bool
) -> pa.ChunkedArray:
    """The converted column; `ragged` if the files have different sequence lengths."""
    column, offsets = arrow[name], None
    transposed = kind.is_transposed(after)
    if kind.sizes[0] is None:  # rows of this file differ in length
        joined = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        offsets = np.asarray(joined.offsets).astype(np.int64)
        values = _values(joined.values, tuple(size for size in kind.sizes[1:] if size))
        offsets, values = offsets - offsets[0], values[offsets[0] : offsets[-1]]
    else:
        shape = tuple(size for size in after.sizes[:: -1 if transposed else 1] if size is not None)
        chunks = [_values(chunk, shape) for chunk in column.chunks]
        values = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    if transposed or after.dtype != kind.dtype:
        turned = values.swapaxes(1, 2) if transposed else values
        dtype = _NUMPY[after.dtype] if after.dtype != kind.dtype else values.dtype
        key = fingerprint("shard", file_fingerprint(file), name, repr(kind), repr(after))
        values = cached_array(key, partial(_write_as, turned, dtype))
    if offsets is None and ragged:
        steps = values.shape[1]
        offsets = np.arange(len(values) + 1, dtype=np.int64) * steps
        values = values.reshape(len(values) * steps, *values.shape[2:])
    made = to_arrow(values) if offsets is None else ragged_column(values, offsets)
    return pa.chunked_array([made])


def _write_as(values: Any, dtype: Any, target: Path) -> None:
    with np.errstate(over="ignore"):  # encoding reports values too large for float32
        write_in_chunks(target, values.shape, dtype, lambda start, end: values[start:end])


def _values(column: pa.Array, shape: tuple[int, ...]) -> Any:
    """The numbers of nested lists of fixed size as an array (rows, *shape), without copying."""
    rows = len(column)
    while not pa.types.is_primitive(column.type):
        column = column.flatten()
    return column.to_numpy(zero_copy_only=False).reshape(rows, *shape)
