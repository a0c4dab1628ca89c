"""Rows from Python to an Arrow file in the cache: one pass, and one type for each column."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.atomic import new_folder
from surefit.data.arrow_types import map_arrow
from surefit.data.cache import cache_folder, fingerprint, hash_bytes
from surefit.data.data_rules import MIXED_TYPES, WRONG_SHAPE, WRONG_TYPE
from surefit.data.formats.numpy_files import Array, to_arrow
from surefit.data.stored_messages import storable
from surefit.data.table import (
    CHUNK_ROWS,
    Source,
    Table,
    array_rank,
    describe_type,
    is_array,
    is_text,
)
from surefit.errors import FindingError
from surefit.findings import Finding, Rule

CHUNK_BYTES = 16 * 2**20
SHOWN = "the rows given from Python"

Row = Mapping[str, Any]


def open_rows(rows: Iterable[Row], findings: Iterable[Finding] = ()) -> Table:
    """A Table of rows whose values are text, numbers, lists, dicts, arrays, tensors or images.

    The rows are asked for once and written as they come. A column that turns out wider than it
    began is widened in what is written already.
    """
    cache = cache_folder() / "tables"
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f".rows.{uuid.uuid4().hex[:8]}.tmp"
    try:
        writer = _Writer(path)
        for chunk in _chunks(rows):
            writer.append(chunk)
        writer.close()
        key = _hash_file(path)
        if not (cache / key).exists():
            with new_folder(cache / key) as temporary:
                os.replace(path, temporary / "table.arrow")
    finally:
        path.unlink(missing_ok=True)
    table = map_arrow(cache / key / "table.arrow")
    return Table(table, (Source(SHOWN, 0),), key, tuple(findings))


def python_value(value: Any) -> Any:
    """A value as Arrow knows it: tensors and pictures are arrays, arrays of one value numbers."""
    if hasattr(value, "detach"):
        from surefit.data.formats.torch_files import as_numpy

        value = as_numpy(value)
    elif type(value).__module__.startswith("PIL."):
        value = np.asarray(value if value.mode in ("L", "RGB", "RGBA") else value.convert("RGB"))
    elif isinstance(value, Path):
        return str(value)
    elif isinstance(value, list):
        return storable(value)
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biuf":
        return value.tolist()
    return value


def _chunks(rows: Iterable[Row]) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        chunk.append({str(name): python_value(value) for name, value in row.items()})
        size += sum(getattr(value, "nbytes", 0) for value in chunk[-1].values())
        if len(chunk) == CHUNK_ROWS or size > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _hash_file(path: Path) -> str:
    with pa.memory_map(str(path)) as file:
        parts = []
        while part := file.read_buffer(CHUNK_BYTES):
            parts.append(hash_bytes(part))
    return fingerprint(parts)


class _Writer:
    """An Arrow file that rows are added to; its schema grows as they need it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_rows = 0
        self.schema = pa.schema([])
        self.file = pa.ipc.new_file(path, self.schema)

    def append(self, chunk: Sequence[Row]) -> None:
        """Write a chunk of rows."""
        columns, schema = {}, self.schema
        for name in dict.fromkeys([*schema.names, *(name for row in chunk for name in row)]):
            at = schema.get_field_index(name)
            known = schema.field(name).type if at >= 0 else pa.null()
            column = _Column(name, [row.get(name) for row in chunk], self.num_rows)
            columns[name], merged = column.build(known)
            field = pa.field(name, merged)
            schema = schema.set(at, field) if at >= 0 else schema.append(field)
        if schema != self.schema:
            self._grow(schema)
        arrays = [columns[field.name].cast(field.type) for field in schema]
        self.file.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        self.num_rows += len(chunk)

    def _grow(self, schema: pa.Schema) -> None:
        """Write what is there anew, with the wider schema."""
        self.file.close()
        wider = self.path.with_name(f"{self.path.name}.wider")
        self.schema, self.file = schema, pa.ipc.new_file(wider, schema)
        for batch in map_arrow(self.path).to_batches():
            arrays = [_grown(batch, field) for field in schema]
            self.file.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        os.replace(wider, self.path)

    def close(self) -> None:
        """Finish the file."""
        self.file.close()


def _grown(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    old = batch.column(field.name) if field.name in batch.schema.names else pa.nulls(len(batch))
    if pa.types.is_null(old.type) and is_array(field.type):
        return pa.array([[]] * len(batch), field.type)
    return old.cast(field.type)


class _Column:
    """The values of one column in one chunk of rows, the first of which is row `first_row`."""

    def __init__(self, name: str, values: list[Any], first_row: int) -> None:
        self.name = name
        self.values = values
        self.first_row = first_row

    def build(self, known: pa.DataType) -> tuple[pa.Array, pa.DataType]:
        """The values as Arrow, and the type that holds both them and what came before."""
        if any(isinstance(value, np.ndarray) for value in self.values):
            column = self._arrays(known)
            if pa.types.is_null(known) and self.first_row:
                known = _compose((None,), pa.null())  # rows without a value have no steps
        else:
            column = self._plain(known)
        return column, merge_types(known, column.type)

    def _plain(self, known: pa.DataType) -> pa.Array:
        if is_text(known) or any(isinstance(value, str) for value in self.values):
            # the blank of a frame: NaN among text is a missing value
            self.values = [None if _is_nan(value) else value for value in self.values]
        try:
            column = pa.array(self.values)
            merge_types(known, column.type)
            return column
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            pass  # some value does not go with the others; find which one
        for place, value in enumerate(self.values):
            try:
                found = pa.array([value]).type
            except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
                raise self._fail(
                    WRONG_TYPE, place, f"cannot be stored: {str(error)[:80]}"
                ) from None
            try:
                known = merge_types(known, found)
            except pa.ArrowException:
                broken = WRONG_TYPE if is_array(known) else MIXED_TYPES
                what = f"holds a {type(value).__name__} ({str(value)[:40]!r}), but "
                raise self._fail(broken, place, f"{what}{describe_type(known)} before.") from None
        raise AssertionError("a column could not be stored, but every value of it could")

    def _arrays(self, known: pa.DataType) -> pa.Array:
        """One array per row; a row without one has no steps, and is dropped as empty."""
        first = next(value for value in self.values if isinstance(value, np.ndarray))
        arrays: list[Array] = []
        for place, value in enumerate(self.values):
            if value is None:
                arrays.append(first[:0])
                continue
            array = np.asarray(value) if isinstance(value, list) else value
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
                what = f"holds a {type(value).__name__}, but an array in other rows."
                raise self._fail(WRONG_TYPE, place, what)
            self._check_shape(place, array, first, known)
            arrays.append(array)
        return _join(arrays)

    def _check_shape(self, place: int, array: Array, first: Array, known: pa.DataType) -> None:
        shape = list(array.shape)
        expected: list[int | None] = list(first.shape)
        if array_rank(known):
            expected = list(_axes(known)[0])
        if not pa.types.is_null(known) and not is_array(_compose(*_axes(known))):
            what = f"holds an array of shape {shape}, but {describe_type(known)} before."
            raise self._fail(WRONG_TYPE, place, what)
        same_rank = len(shape) == len(expected)
        # pictures may differ in every axis, rows of features in their first
        is_picture = len(shape) == 3 or array.dtype == np.uint8
        is_turned = len(shape) == 2 and shape[:1] == expected[:1]  # rows may be [width, steps]
        free = is_picture or is_turned or not same_rank
        pairs = () if free else zip(shape[1:], expected[1:], strict=True)
        if not same_rank or any(size != wanted for size, wanted in pairs if wanted is not None):
            shown = ", ".join("*" if size is None else str(size) for size in expected)
            what = f"has shape {shape}, but [{shown}] before; only the number of steps may differ."
            raise self._fail(WRONG_SHAPE, place, what)

    def _fail(self, rule: Rule, place: int, what: str) -> FindingError:
        row = self.first_row + place
        message = f"row {row}: column {self.name!r} {what}"
        return rule.error(message, row=row, column=self.name)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


def _join(arrays: Sequence[Array]) -> pa.Array:
    """Arrays of one rank as a column; axes in which they differ are lists of their own length."""
    shapes = {array.shape for array in arrays}
    if len(shapes) == 1:
        return to_arrow(np.stack(arrays))
    if len({shape[1:] for shape in shapes if shape[0]}) <= 1:
        filled = [array for array in arrays if len(array)] or arrays[:1]
        inner = to_arrow(np.concatenate(filled))
    else:
        inner = _join([part for array in arrays for part in array])
    ends = np.cumsum([0, *(len(array) for array in arrays)])
    return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), inner)


def merge_types(known: pa.DataType, found: pa.DataType) -> pa.DataType:
    """The type that holds both; raises ArrowException where there is none.

    >>> str(merge_types(pa.list_(pa.float32(), 3), pa.list_(pa.float32(), 4)))
    'large_list<item: float>'
    """
    (axes, value), (other, other_value) = _axes(known), _axes(found)
    if axes and other and known != found:
        deep, shallow = (axes, other) if len(axes) >= len(other) else (other, axes)
        leaf = value if shallow is axes else other_value
        if len(deep) == len(shallow) or pa.types.is_null(leaf):
            sizes = [
                size if place >= len(shallow) or shallow[place] == size else None
                for place, size in enumerate(deep)
            ]
            if len(deep) == len(shallow):
                return _compose(tuple(sizes), merge_types(value, other_value))
            return _compose(tuple(sizes), other_value if shallow is axes else value)
    pair = [pa.schema([pa.field("x", kind)]) for kind in (known, found)]
    return pa.unify_schemas(pair, promote_options="permissive").field("x").type


def _axes(kind: pa.DataType) -> tuple[tuple[int | None, ...], pa.DataType]:
    """The sizes of a nested list, None where they vary, and the type of its values."""
    sizes: list[int | None] = []
    for _ in range(array_rank(kind)):
        sizes.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    return tuple(sizes), kind


def _compose(sizes: tuple[int | None, ...], value: pa.DataType) -> pa.DataType:
    for size in reversed(sizes):
        value = pa.large_list(value) if size is None else pa.list_(value, size)
    return value
