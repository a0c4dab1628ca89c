"""Shards of arrays that differ in shape or type: planned, then converted to one shape and type.

Reshaping is free. Transposing and type conversion write the array once to the cache, in chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.data.cache import fingerprint
from surefit.data.column_types import FLOAT_NAMES, is_array
from surefit.data.data_rules import FILES_DO_NOT_MATCH
from surefit.data.file_identity import file_fingerprint
from surefit.data.formats.cached_array import cached_array, write_in_chunks
from surefit.data.formats.numpy_files import ragged_column, to_arrow
from surefit.data.formats.opened import Opened
from surefit.findings import Finding, rule

SHARD_RESHAPED = rule(
    "SF427",
    "fixed",
    "shard converted to the shape of the others",
    why="Several files are read as one table, so their shapes and types must be the same.",
    fix="Save all files with one shape and type to avoid this note.",
)

SHOWN_FILES = 3


@dataclass(frozen=True)
class Kind:
    """The rows of one file: the sizes of their axes, None where they vary, and their type."""

    sizes: tuple[int | None, ...]
    dtype: str
    rows: int

    def __str__(self) -> str:
        shown = ", ".join("*" if size is None else str(size) for size in self.sizes)
        return f"[{shown}] {FLOAT_NAMES.get(self.dtype, self.dtype)}"


@dataclass(frozen=True)
class Change:
    """How the rows of one file are converted to the shape and type of the others."""

    sizes: tuple[int | None, ...]
    """The axes before transposing: without axes of length 1, flat rows reshaped."""
    transposed: bool = False
    dtype: str | None = None
    """The type to convert to; None to keep the file's type."""

    @property
    def rewrites(self) -> bool:
        """Whether the values must be copied."""
        return self.transposed or self.dtype is not None

    @property
    def result(self) -> tuple[int | None, ...]:
        """The axes of the converted rows."""
        return self.sizes[::-1] if self.transposed else self.sizes


def plan_shards(kinds: Sequence[Kind]) -> list[Change | None]:
    """A Change for each file; None if its rows cannot get the most common feature size.

    >>> plan_shards([Kind((20, 271), "float", 9), Kind((271, 20), "float", 5)])[1].transposed
    True
    >>> plan_shards([Kind((20, 271), "float", 9), Kind((5420,), "float", 5)])[1].sizes
    (20, 271)
    """
    axes = [_without_ones(kind.sizes) for kind in kinds]
    widths = Counter[int]()
    for kind, sizes in zip(kinds, axes, strict=True):
        if len(sizes) == 2 and sizes[1] is not None:
            widths[sizes[1]] += kind.rows
    width = widths.most_common(1)[0][0] if widths else None
    floats = any("float" in kind.dtype or kind.dtype == "double" for kind in kinds)
    common = kinds[0].dtype if len({kind.dtype for kind in kinds}) == 1 else None
    target = common or ("float" if floats else "int64")
    return [
        _change(sizes, width, None if kind.dtype == target else target)
        for kind, sizes in zip(kinds, axes, strict=True)
    ]


def _without_ones(sizes: tuple[int | None, ...]) -> tuple[int | None, ...]:
    kept = list(sizes)
    while len(kept) > 2 and 1 in kept:
        kept.remove(1)
    return tuple(kept)


def _change(sizes: tuple[int | None, ...], width: int | None, dtype: str | None) -> Change | None:
    if width is None:
        return Change(sizes, dtype=dtype) if len(sizes) == 1 else None
    if len(sizes) == 2 and sizes[1] == width:
        return Change(sizes, dtype=dtype)
    if len(sizes) == 2 and sizes[0] == width and sizes[1] is not None:
        return Change(sizes, transposed=True, dtype=dtype)
    if len(sizes) == 1 and sizes[0] is not None and sizes[0] % width == 0:
        return Change((sizes[0] // width, width), dtype=dtype)
    return None


def align_shards(
    files: Sequence[Path], opened: Sequence[Opened]
) -> tuple[list[Opened], list[Finding]]:
    """The opened files with array columns of one shape and type, and what was converted."""
    parts = list(opened)
    found: list[Finding] = []
    names = [name for name in parts[0].arrow.column_names if _differs(name, parts)]
    for name in names:
        kinds = [_kind(part.arrow, name) for part in parts]
        changes = plan_shards(kinds)
        for file, kind, change in zip(files, kinds, changes, strict=True):
            if change is None:
                raise _disagrees(file, name, kind, files, kinds, changes)
        known = [change for change in changes if change is not None]
        found += _notes(files, name, kinds, known)
        ragged = len({change.result[0] for change in known}) > 1
        for place, (file, change) in enumerate(zip(files, known, strict=True)):
            arrow = parts[place].arrow
            column = _changed(file, name, arrow[name], kinds[place], change, ragged)
            at = arrow.column_names.index(name)
            parts[place] = replace(parts[place], arrow=arrow.set_column(at, name, column))
    return parts, found


def _differs(name: str, parts: Sequence[Opened]) -> bool:
    """Whether a column is an array without missing rows in all files, of different types."""
    if not all(name in part.arrow.column_names for part in parts):
        return False
    kinds = [part.arrow.schema.field(name).type for part in parts]
    plain = all(is_array(kind) and _inner_sizes_known(kind) for kind in kinds)
    return plain and len(set(kinds)) > 1 and not any(p.arrow[name].null_count for p in parts)


def _inner_sizes_known(kind: pa.DataType) -> bool:
    inner = kind.value_type
    while pa.types.is_fixed_size_list(inner):
        inner = inner.value_type
    return not (pa.types.is_list(inner) or pa.types.is_large_list(inner))


def _kind(arrow: pa.Table, name: str) -> Kind:
    kind, sizes = arrow.schema.field(name).type, []
    while not pa.types.is_primitive(kind):
        sizes.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    return Kind(tuple(sizes), str(kind), arrow.num_rows)


def _disagrees(
    file: Path,
    name: str,
    kind: Kind,
    files: Sequence[Path],
    kinds: Sequence[Kind],
    changes: Sequence[Change | None],
) -> Exception:
    fitting = (place for place, change in enumerate(changes) if change is not None)
    other = next(fitting, 0 if file != files[0] else 1)
    message = (
        f"rows of column {name!r} are {kind} in {file.name}, but {kinds[other]} in "
        f"{files[other].name}."
    )
    fix = "Leave the file out, or save it with the feature size of the others."
    return FILES_DO_NOT_MATCH.error(message, fix=fix, file=str(file), column=name)


def _notes(
    files: Sequence[Path], name: str, kinds: Sequence[Kind], changes: Sequence[Change]
) -> Iterator[Finding]:
    """One finding per conversion, with the first few files."""
    groups: dict[str, list[Path]] = {}
    for file, kind, change in zip(files, kinds, changes, strict=True):
        if change.transposed or change.sizes != kind.sizes or change.dtype:
            after = Kind(change.result, change.dtype or kind.dtype, kind.rows)
            groups.setdefault(f"rows of column {name!r} are {kind}, read as {after}", []).append(
                file
            )
    for what, changed in groups.items():
        shown = ", ".join(file.name for file in changed[:SHOWN_FILES])
        more = f" and {len(changed) - SHOWN_FILES} more" if len(changed) > SHOWN_FILES else ""
        yield SHARD_RESHAPED.finding(f"{shown}{more}: {what}.", file=str(changed[0]), column=name)


def _changed(
    file: Path, name: str, column: pa.ChunkedArray, kind: Kind, change: Change, ragged: bool
) -> pa.ChunkedArray:
    """The converted column; `ragged` if the files have different sequence lengths."""
    offsets = None
    if kind.sizes[0] is None:  # rows of this file differ in length
        joined = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        offsets = np.asarray(joined.offsets).astype(np.int64)
        values = _values(joined.values, tuple(size for size in kind.sizes[1:] if size))
        offsets, values = offsets - offsets[0], values[offsets[0] : offsets[-1]]
    else:
        shape = tuple(size for size in change.sizes if size is not None)
        chunks = [_values(chunk, shape) for chunk in column.chunks]
        values = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    if change.rewrites:
        values = _rewritten(file, name, values, change)
    if offsets is None and ragged:
        steps = values.shape[1]
        offsets = np.arange(len(values) + 1, dtype=np.int64) * steps
        values = values.reshape(len(values) * steps, *values.shape[2:])
    made = to_arrow(values) if offsets is None else ragged_column(values, offsets)
    return pa.chunked_array([made])


def _values(column: pa.Array, shape: tuple[int, ...]) -> Any:
    """The numbers of nested lists of fixed size as an array (rows, *shape), without copying."""
    rows = len(column)
    while not pa.types.is_primitive(column.type):
        column = column.flatten()
    return column.to_numpy(zero_copy_only=False).reshape(rows, *shape)


def _rewritten(file: Path, name: str, values: Any, change: Change) -> Any:
    """The values transposed or in another type, written to the cache."""

    def turned(start: int, end: int) -> Any:
        chunk = values[start:end]
        with np.errstate(over="ignore"):  # encoding reports values too large for float32
            return (chunk.swapaxes(1, 2) if change.transposed else chunk).astype(dtype, copy=False)

    dtype = values.dtype if change.dtype is None else _NUMPY[change.dtype]
    shape = values.shape
    if change.transposed:
        shape = (shape[0], shape[2], shape[1])
    key = fingerprint("shard", file_fingerprint(file), name, repr(change))
    return cached_array(key, lambda target: write_in_chunks(target, shape, dtype, turned))


_NUMPY: dict[str, Any] = {"float": np.float32, "int64": np.int64}
