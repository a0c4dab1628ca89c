"""Python rows to an Arrow file in the cache, in one pass; each column gets one type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.core import files
from surefit.core.digests import hash_file
from surefit.data.arrow_types import map_arrow
from surefit.data.arrow_writer import ArrowWriter, ColumnFaultError
from surefit.data.cache import scratch_in_cache
from surefit.data.cache_entry import open_entry
from surefit.data.column_types import (
    array_rank,
    describe_type,
    is_array,
    is_text,
    list_axes,
    nested_list,
)
from surefit.data.data_rules import WRONG_SHAPE, WRONG_TYPE
from surefit.data.formats.numpy_files import Array, to_arrow
from surefit.data.stored_messages import storable
from surefit.data.table import CHUNK_ROWS, Source, Table
from surefit.data.written_values import describe_missing
from surefit.findings import Finding, Rule

CHUNK_BYTES = 16 * 2**20
FILE = "table.arrow"
SHOWN = "the Python objects passed in"

Row = Mapping[str, Any]


def open_rows(rows: Iterable[Row], findings: Iterable[Finding] = ()) -> Table:
    """A Table of rows whose values are text, numbers, lists, dicts, arrays, tensors or images.

    The rows are iterated once and written as they come.
    """
    with scratch_in_cache() as folder:
        path = folder / FILE
        found = _write(rows, path)
        key = hash_file(path)
        table = open_entry(
            "tables",
            key,
            lambda made: files.move_inside(path, made / FILE),
            lambda made: map_arrow(made / FILE),
        )
    return Table(table, (Source(SHOWN, 0),), key, (*findings, *found))


def _write(rows: Iterable[Row], path: Path) -> Iterator[Finding]:
    try:
        with ArrowWriter(path, WRONG_TYPE, empty_arrays=True) as writer:
            for chunk in _chunks(rows):
                names = dict.fromkeys(name for row in chunk for name in row)
                columns = {n: _column(n, [row.get(n) for row in chunk], writer) for n in names}
                writer.append(columns, len(chunk))
    except ColumnFaultError as fault:
        message = fault.message("row", fault.rows)
        raise fault.rule.error(message, row=fault.rows[0], column=fault.column) from None
    return describe_missing(writer.missing, "numbers")


def python_value(value: Any) -> Any:
    """A value as Arrow stores it: tensors and images become arrays, arrays of one value numbers."""
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


def as_arrow(row: Row, schema: pa.Schema, number: int) -> pa.Table:
    """One row as a table in memory, with the columns of a table that was written before."""
    columns = {}
    for name in schema.names:
        value, kind = python_value(row.get(name)), schema.field(name).type
        try:
            if isinstance(value, np.ndarray):
                columns[name] = _Arrays(name, [value], number, kind).join()
            else:
                columns[name] = pa.array([value], kind)
        except ColumnFaultError as fault:
            message = fault.message("row", fault.rows)
            raise fault.rule.error(message, row=number, column=name) from None
        except (pa.ArrowException, ValueError, TypeError) as error:
            what = f"row {number}: column {name!r} is {str(value)[:40]!r} ({error})"
            raise WRONG_TYPE.error(what[:300], row=number, column=name) from None
    return pa.table(columns)


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


def _column(name: str, values: list[Any], writer: ArrowWriter) -> pa.Array:
    """The values of one column in one chunk of rows, as Arrow."""
    known = writer.type_of(name)
    if any(isinstance(value, np.ndarray) for value in values):
        return _Arrays(name, values, writer.num_rows, known).join()
    if is_text(known) or any(isinstance(value, str) for value in values):
        # pandas marks missing text with NaN
        values = [None if isinstance(v, float) and v != v else v for v in values]
    return writer.column(name, values)


@dataclass(frozen=True)
class _Arrays:
    """Rows of arrays from row `first_row` on; `known` is the type of earlier rows."""

    name: str
    values: list[Any]
    first_row: int
    known: pa.DataType

    def join(self) -> pa.Array:
        """One array per row; a row without one gets an empty array, and is dropped later."""
        first = next(value for value in self.values if isinstance(value, np.ndarray))
        arrays: list[Array] = []
        for place, value in enumerate(self.values):
            if value is None:
                arrays.append(first[:0])
                continue
            array = np.asarray(value) if isinstance(value, list) else value
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
                what = f"holds a {type(value).__name__}, but an array in other rows"
                raise self._fault(WRONG_TYPE, place, what)
            self._check_shape(place, array, first)
            arrays.append(array)
        return _join(arrays)

    def _check_shape(self, place: int, array: Array, first: Array) -> None:
        shape, known = list(array.shape), self.known
        expected: list[int | None] = list(first.shape)
        if array_rank(known):
            expected = list(list_axes(known)[0])
        if not pa.types.is_null(known) and not is_array(nested_list(*list_axes(known))):
            what = f"holds an array of shape {shape}, but {describe_type(known)} in earlier rows"
            raise self._fault(WRONG_TYPE, place, what)
        same_rank = len(shape) == len(expected)
        # images may differ in every axis, rows of features only in the first
        is_image = len(shape) == 3 or array.dtype == np.uint8
        is_transposed = len(shape) == 2 and shape[:1] == expected[:1]
        free = is_image or is_transposed or not same_rank
        pairs = () if free else zip(shape[1:], expected[1:], strict=True)
        if not same_rank or any(size != wanted for size, wanted in pairs if wanted is not None):
            shown = ", ".join("*" if size is None else str(size) for size in expected)
            what = f"has shape {shape}, but [{shown}] in earlier rows; only the first axis may vary"
            raise self._fault(WRONG_SHAPE, place, what)

    def _fault(self, rule: Rule, place: int, what: str) -> ColumnFaultError:
        return ColumnFaultError(rule, self.name, [self.first_row + place], what)


def _join(arrays: Sequence[Array]) -> pa.Array:
    """Arrays of one rank as a column; axes in which they differ become lists."""
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
