"""Rows to one Arrow file whose schema grows as later rows need it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.core import files
from surefit.data.arrow_types import map_arrow
from surefit.data.column_types import (
    UNSTORABLE,
    array_rank,
    describe_type,
    find_odd_values,
    is_array,
    is_number,
    is_text,
    list_axes,
    merge_types,
    nested_list,
)
from surefit.data.data_rules import MIXED_TYPES, WRONG_SHAPE, WRONG_TYPE
from surefit.data.formats.numpy_files import nested_column
from surefit.data.table import CHUNK_ROWS
from surefit.data.written_values import MISSING_MARKERS, is_missing
from surefit.findings import Rule

SHOWN_CHARACTERS = 80
Array = npt.NDArray[Any]


class ColumnFaultError(Exception):
    """Values that do not fit into their column: the Rule they break, their rows, what is wrong."""

    def __init__(
        self, rule: Rule, column: str, rows: Sequence[int], what: str, count: int = 1
    ) -> None:
        super().__init__(what)
        self.rule, self.column, self.rows, self.what, self.count = rule, column, rows, what, count

    def message(self, unit: str, numbers: Sequence[int]) -> str:
        """The message; `numbers` are the rows as the user counts them, by `unit` (line or row)."""
        more = self.count - 1
        like_it = ""
        if more:
            shown = ", ".join(map(str, numbers[1:]))
            end = ", …" if more > len(numbers) - 1 else ""
            like_it = f" ({more} more like it: {unit}{'s' if more > 1 else ''} {shown}{end})"
        return f"{unit} {numbers[0]}: column {self.column!r} {self.what}{like_it}."


class ArrowWriter:
    """An Arrow file to which chunks of rows are added, each column in one type.

    If a chunk needs a wider schema (null to text, integer to float, one more column), the batches
    written so far are rewritten in that schema.
    """

    def __init__(
        self,
        path: Path,
        unstorable: Rule,
        *,
        values_of: Callable[[str], Iterable[Any]] | None = None,
        empty_arrays: bool = False,
        markers: Collection[str] = MISSING_MARKERS,
    ) -> None:
        """Begin a file at `path`; `unstorable` is the rule of a value that Arrow cannot store.

        `values_of` returns all values of a column again, to find those of another type than most;
        without it, the rows written so far are searched. With `empty_arrays`, rows without a value
        in a column of arrays get an empty array. A text among `markers` is a missing value in a
        column of numbers.
        """
        self.schema = pa.schema([])
        self.num_rows = 0
        self._num_bare = 0
        self._path = path
        self._unstorable = unstorable
        self._values_of = values_of
        self._empty_arrays = empty_arrays
        self._markers = markers
        self.missing: dict[str, Counter[str]] = {}
        """Markers of missing values in columns of numbers, by column, as they are written."""
        self._file = pa.ipc.new_file(path, self.schema)

    def __enter__(self) -> ArrowWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of a column so far."""
        at = self.schema.get_field_index(name)
        return self.schema.field(at).type if at >= 0 else pa.null()

    def column(self, name: str, values: Sequence[Any]) -> pa.Array:
        """Values of the next rows as Arrow; a ColumnFaultError names one that does not fit."""
        known = self.type_of(name)
        if any(isinstance(value, np.ndarray) for value in values):
            return Arrays(name, values, self.num_rows, known).join()
        if self._empty_arrays and (is_text(known) or any(isinstance(v, str) for v in values)):
            # pandas marks missing text with NaN
            values = [None if isinstance(v, float) and v != v else v for v in values]
        try:
            column = pa.array(values)
            merge_types(known, column.type)
        except UNSTORABLE:
            column = self._numbers(name, values)
            if column is None:
                raise self._fault(name, values) from None
        return column

    def _numbers(self, name: str, values: Sequence[Any]) -> pa.Array | None:
        """Numbers among which markers of missing values are null; None for anything else."""
        markers = {*self._markers, ""}
        marked = [is_missing(value, markers) for value in values]
        try:
            column = pa.array([None if m else v for v, m in zip(values, marked, strict=True)])
            kind = merge_types(self.type_of(name), column.type)
        except UNSTORABLE:
            return None
        if not any(marked) or not is_number(kind):
            return None
        texts = (value.strip() for value, m in zip(values, marked, strict=True) if m)
        self.missing.setdefault(name, Counter()).update(texts)
        return column

    def append_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the next rows; a value that a row does not have is null."""
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: self.column(name, [row.get(name) for row in rows]) for name in names}
        self.append(columns, len(rows))

    def append_all(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows, a chunk at a time."""
        left = iter(rows)
        while chunk := list(islice(left, CHUNK_ROWS)):
            self.append_rows(chunk)

    def append(self, columns: Mapping[str, pa.Array], num_rows: int) -> None:
        """Write the next rows; a column that is not among `columns` is null in them."""
        fields = {field.name: field.type for field in self.schema}
        for name, column in columns.items():
            fields[name] = merge_types(self._known(name, column.type), column.type)
        if not fields:
            self._num_bare += num_rows  # a batch without columns has no rows
            self.num_rows += num_rows
            return
        schema = pa.schema(list(fields.items()))
        if schema != self.schema:
            self._grow(schema)
        arrays = [
            self._cast(columns[field.name], field, self.num_rows)
            if field.name in columns
            else pa.nulls(num_rows, field.type)
            for field in schema
        ]
        self._file.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        self.num_rows += num_rows

    def _known(self, name: str, found: pa.DataType) -> pa.DataType:
        known = self.type_of(name)
        if self._fills(known, found) and self.num_rows:
            return nested_list((None,), pa.null())  # an empty array does not fit a fixed size
        return known

    def _fills(self, known: pa.DataType, found: pa.DataType) -> bool:
        return self._empty_arrays and pa.types.is_null(known) and is_array(found)

    def _grow(self, schema: pa.Schema) -> None:
        """Rewrite the file in the wider schema."""
        self._file.close()
        wider = self._path.with_name(f"{self._path.name}.wider")
        self._file = pa.ipc.new_file(wider, schema)
        first_row = 0
        for num_rows, columns in self._read_written():
            arrays = [
                self._widened(columns.get(field.name, pa.nulls(num_rows)), field, first_row)
                for field in schema
            ]
            self._file.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            first_row += num_rows
        self.schema, self._num_bare = schema, 0
        files.move_inside(wider, self._path)

    def _read_written(self) -> Iterator[tuple[int, dict[str, pa.Array]]]:
        """Yield the number of rows and the columns of each batch in the file, which is closed."""
        if self._num_bare:
            yield self._num_bare, {}
        for batch in map_arrow(self._path).to_batches():
            yield len(batch), dict(zip(batch.schema.names, batch.columns, strict=True))

    def _widened(self, old: pa.Array, field: pa.Field, first_row: int) -> pa.Array:
        if self._fills(old.type, field.type):
            return pa.array([[]] * len(old), field.type)
        return self._cast(old, field, first_row)

    def _cast(self, column: pa.Array, field: pa.Field, first_row: int) -> pa.Array:
        if column.type == field.type:
            return column
        try:
            cast = column.cast(field.type)
            cast.validate()  # Arrow shortens a field without values within a list
            return cast
        except pa.ArrowException:
            return self._cast_values(field, column.to_pylist(), first_row)

    def _cast_values(self, field: pa.Field, values: Sequence[Any], first_row: int) -> pa.Array:
        """Return the values in a type; a value that it cannot hold is a fault."""
        for place, value in enumerate(values):
            try:
                pa.array([value], field.type)
            except UNSTORABLE as error:
                raise self._unstorable_value(field.name, first_row + place, error) from None
        return pa.array(values, field.type)

    def _fault(self, name: str, values: Sequence[Any]) -> ColumnFaultError:
        """Return the value that cannot be stored, else those of another type than most."""
        for place, value in enumerate(values):
            row = self.num_rows + place
            try:
                pa.array([value])
            except UNSTORABLE as error:
                if isinstance(value, list | dict) and isinstance(error, pa.ArrowException):
                    what = f"mixes types within one value: {str(value)[:40]!r}"
                    return ColumnFaultError(MIXED_TYPES, name, [row], what)
                return self._unstorable_value(name, row, error)
        written = chain(self._written(name), values)
        odd = find_odd_values(written if self._values_of is None else self._values_of(name))
        if odd is None:
            return self._too_wide(name, values)
        return ColumnFaultError(MIXED_TYPES, name, odd.rows, odd.what, odd.count)

    def _too_wide(self, name: str, values: Sequence[Any]) -> ColumnFaultError:
        """Return the value that the common type of all values cannot hold exactly."""
        kind = self.type_of(name)
        for value in values:
            kind = merge_types(kind, pa.array([value]).type)
        try:
            self._cast_values(pa.field(name, kind), values, self.num_rows)
        except ColumnFaultError as fault:
            return fault
        raise AssertionError("a column could not be stored, but every value of it could")

    def _unstorable_value(self, name: str, row: int, error: Exception) -> ColumnFaultError:
        what = f"holds a value that cannot be stored: {str(error)[:SHOWN_CHARACTERS].rstrip('.')}"
        return ColumnFaultError(self._unstorable, name, [row], what)

    def _written(self, name: str) -> Iterator[Any]:
        self._file.close()
        for num_rows, columns in self._read_written():
            yield from columns.get(name, pa.nulls(num_rows)).to_pylist()


@dataclass(frozen=True)
class Arrays:
    """Rows of arrays from row `first_row` on; `known` is the type of earlier rows."""

    name: str
    values: Sequence[Any]
    first_row: int
    known: pa.DataType

    def join(self) -> pa.Array:
        """Return one array per row; a row without one gets an empty array, and is dropped later."""
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
        flat = np.concatenate([array.reshape(-1) for array in arrays])
        return nested_column(flat, [array.shape for array in arrays])

    def _check_shape(self, place: int, array: Array, first: Array) -> None:
        """Refuse another number of axes; which axes may differ in size is for those who read it."""
        shape, known = list(array.shape), self.known
        expected: list[int | None] = list(first.shape)
        if array_rank(known):
            expected = list(list_axes(known)[0])
        if not pa.types.is_null(known) and not is_array(nested_list(*list_axes(known))):
            what = f"holds an array of shape {shape}, but {describe_type(known)} in earlier rows"
            raise self._fault(WRONG_TYPE, place, what)
        if len(shape) != len(expected):
            shown = ", ".join("*" if size is None else str(size) for size in expected)
            what = (
                f"has shape {shape}, but [{shown}] in earlier rows, which is another number of axes"
            )
            raise self._fault(WRONG_SHAPE, place, what)

    def _fault(self, rule: Rule, place: int, what: str) -> ColumnFaultError:
        return ColumnFaultError(rule, self.name, [self.first_row + place], what)
