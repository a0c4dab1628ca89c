"""The Table: the user's data, opened. Arrow rows and columns, memory-mapped from disk."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.config import set_option
from surefit.data.cache import fingerprint
from surefit.data.column_types import is_array, is_list
from surefit.data.data_rules import MISSING_COLUMN
from surefit.data.profile import Profile
from surefit.findings import Finding
from surefit.printable import redact

if TYPE_CHECKING:
    from surefit.data.python.live_rows import LiveRows
    from surefit.data.python.streams import Stream

CHUNK_ROWS = 1024
CHUNK_BYTES = 1 << 23
"""The largest number of rows, and of bytes, that are read at a time: each process that reads has
several copies of them, as Arrow and as Python values."""


@dataclass(frozen=True)
class Source:
    """One file of a Table, the number of its first row, and its columns where files differ."""

    file: str
    first_row: int
    columns: tuple[str, ...] = ()
    name: str = ""
    """The name of the source that the file belongs to, where several are mixed."""


@dataclass(frozen=True)
class Table:
    """Rows and columns on disk; `key` changes when the content does, not when files move."""

    arrow: pa.Table
    sources: tuple[Source, ...]
    key: str
    findings: tuple[Finding, ...] = ()
    files: tuple[str, ...] = ()
    """Columns of file paths; `rows` returns relative ones as paths that can be opened."""
    contents: tuple[str, ...] = ()
    """Columns that named files, and have the content of these in place of their paths."""
    live: LiveRows | Stream | None = None
    """How rows are read in training, where every reading draws something else or these are only
    the first rows of a stream."""

    @cached_property
    def place_key(self) -> str:
        """Changes with the content and with the files it is read from, which findings name."""
        places = [redact(os.path.realpath(source.file)) for source in self.sources]
        return fingerprint(self.key, places)

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(self.arrow.num_rows)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.arrow.column_names)

    def require_column(self, setting: str, name: str) -> None:
        """Refuse a column that a setting names and the table does not have."""
        if name in self.columns:
            return
        near = next(iter(difflib.get_close_matches(name, self.columns, n=1, cutoff=0.5)), None)
        hint = f" Did you mean {near!r}?" if near else ""
        raise MISSING_COLUMN.error(
            f"{setting} names the column {name!r}; the data has {', '.join(self.columns)}.{hint}",
            fix=f"Name a column of the data: {set_option(setting, near or '<column>')}.",
            column=name,
        )

    def without(self, columns: Sequence[str]) -> Table:
        """Return the table without some of its columns; an unknown one is an error."""
        for name in columns:
            self.require_column("ignore", name)
        if not columns:
            return self
        key = "-".join([self.key, *columns])
        return replace(self, arrow=self.arrow.drop_columns(list(columns)), key=key)

    def column_type(self, name: str) -> pa.DataType:
        """Return the Arrow type of a column."""
        return self.arrow.schema.field(name).type

    @cached_property
    def _profiles(self) -> dict[str, Profile]:
        return {}

    def profile(self, name: str) -> Profile:
        """Return what the values of a column are; each fact is found once."""
        return self._profiles.setdefault(name, Profile(self.arrow[name]))

    def where(self, row: int) -> dict[str, str | int]:
        """File and row of row number `row`, as a Finding states them."""
        source = next(s for s in reversed(self.sources) if s.first_row <= row)
        named: dict[str, str | int] = {"source": source.name} if source.name else {}
        return {"file": source.file, "row": row - source.first_row, **named}

    @cached_property
    def mixed(self) -> dict[str, int]:
        """The names of the sources that are mixed, and the first row of each."""
        named = {s.name: s.first_row for s in reversed(self.sources) if s.name}
        return dict(reversed(named.items()))

    def row(self, index: int) -> dict[str, Any]:
        """Return one row as Python values and arrays."""
        return next(self.rows([index]))

    def rows(self, indices: Sequence[int] | None = None) -> Iterator[dict[str, Any]]:
        """Yield all rows, or those at `indices`, one by one; they are read in small chunks."""
        places = range(self.num_rows) if indices is None else indices
        if not self.files:
            yield from self._rows(indices)
            return
        for place, row in zip(places, self._rows(indices), strict=True):
            file = str(self.where(int(place))["file"])
            yield {**row, **{name: _found(row[name], file) for name in self.files}}

    def _rows(self, indices: Sequence[int] | None) -> Iterator[dict[str, Any]]:
        size = num_at_once(self.arrow)
        if indices is None:
            for batch in self.arrow.to_batches(max_chunksize=size):
                yield from python_rows(batch)
            return
        batches = self.arrow.to_batches()
        ends = np.cumsum([len(batch) for batch in batches], dtype=np.int64)
        for start in range(0, len(indices), size):
            chosen = np.asarray(indices[start : start + size], np.int64)
            for batch in take_rows(batches, ends, chosen).to_batches():
                yield from python_rows(batch)


def num_at_once(arrow: pa.Table, most: int = CHUNK_ROWS) -> int:
    """Return the number of rows to read at a time, at most CHUNK_BYTES of them."""
    per_row = int(arrow.nbytes) // max(1, int(arrow.num_rows))
    return max(1, min(most, CHUNK_BYTES // max(1, per_row)))


def take_rows(
    batches: Sequence[pa.RecordBatch], ends: npt.NDArray[np.int64], chosen: npt.NDArray[np.int64]
) -> pa.Table:
    """Return rows by number, each from its own batch: `Table.take` would concatenate all batches
    first.

    `ends` is the number of rows up to the end of each batch.
    """
    batch_of = np.searchsorted(ends, chosen, side="right")
    parts, places = [], []
    for number in np.unique(batch_of):
        places.append(np.flatnonzero(batch_of == number))
        first = ends[number] - len(batches[number])
        parts.append(_taken(batches[number], chosen[places[-1]] - first))
    taken, order = pa.Table.from_batches(parts), np.concatenate(places)
    if (np.diff(order) == 1).all():
        return taken
    return taken.combine_chunks().take(pa.array(np.argsort(order)))


def _taken(batch: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return rows of a batch; neighbouring rows are not copied."""
    if (np.diff(rows) == 1).all():
        return batch.slice(int(rows[0]), len(rows))
    return batch.take(pa.array(rows))


def _found(value: Any, data_file: str) -> Any:
    """A path that can be opened: next to the data file if it exists there, else unchanged."""
    if isinstance(value, dict):
        return value if value.get("bytes") else {**value, "path": _found(value["path"], data_file)}
    if not isinstance(value, str) or not value:
        return value
    folder = data_file if os.path.isdir(data_file) else os.path.dirname(data_file)
    beside = os.path.join(folder, value)
    return beside if os.path.exists(beside) else value


def python_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch as Python values and arrays."""
    columns = {
        name: _array_values(column) if is_array(column.type) else column.to_pylist()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _array_values(column: pa.Array) -> list[Any]:
    """Return rows of a list column as NumPy arrays, without converting to Python numbers."""
    if column.null_count:
        return list(column.to_pylist())
    values: list[Any] = []
    for scalar in column:
        values.append(_as_numpy(scalar.values))
    return values


def _as_numpy(values: pa.Array) -> Any:
    shape = [len(values)]
    while pa.types.is_fixed_size_list(values.type):
        shape.append(values.type.list_size)
        values = values.flatten()
    if is_list(values.type):
        if values.null_count:
            return values.to_pylist()
        inner = [_as_numpy(scalar.values) for scalar in values]
        shapes = {getattr(part, "shape", None) for part in inner}  # None: lists of several shapes
        return np.stack(inner) if len(shapes) == 1 and None not in shapes else inner
    return values.to_numpy(zero_copy_only=False).reshape(shape)
