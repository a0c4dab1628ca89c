"""Streams: rows that can only be iterated, and that may never end.

The first rows are copied into the cache, and everything is planned with them. Later rows are read
as training needs them, window by window. Before each window, Python's, NumPy's and torch's global
generators are seeded from its number, so that a stream that draws from them can be read again.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.core.foreign import parse_json
from surefit.data.python.live_rows import as_named, code_failed, kept_randomness, seed_generators
from surefit.data.python.rows_to_arrow import SHOWN, as_arrow, open_rows, python_value
from surefit.data.table import Source, Table
from surefit.findings import note
from surefit.progress import Progress, silent

FIRST_ROWS, FIRST_BYTES = 4096, 64 << 20
"""The rows that everything is planned with: so many, or fewer if they are large."""

NamedItems = Callable[[Iterator[Any]], Iterator[dict[str, Any]]]


@dataclass
class Cursor:
    """Where a stream is: the pass over it, and the rows of this pass that were read."""

    rows: Iterator[Any] | None = None
    number: int = 0
    passes: int = 0
    moved: Any = None
    """A copy of the object, to which a saved position was given; the object itself stays."""


@dataclass(frozen=True)
class Stream:
    """Rows that are read in order; one cursor moves over them."""

    start: Callable[[], Iterator[Any]]
    """Begins to iterate."""
    owner: Any
    """The object that may save its position with state_dict() and load_state_dict()."""
    name: str
    again: bool
    """Whether the rows can be iterated again."""
    schema: pa.Schema
    cursor: Cursor = field(default_factory=Cursor)

    def next(self) -> tuple[int, Table]:
        """Return next row and its number in this pass; StopIteration at the end of the stream."""
        number, item = self.cursor.number, self.skip()
        arrow = as_arrow(as_named(item, self.schema.names, number), self.schema, number)
        return number, Table(arrow, (Source(SHOWN, 0),), "")

    def skip(self) -> Any:
        """Return the next item, which may be left unread."""
        cursor = self.cursor
        if cursor.rows is None:
            cursor.rows = self.start() if cursor.moved is None else iter(cursor.moved)
        try:
            item = next(cursor.rows)
        except StopIteration:
            raise
        except Exception as error:
            place = f"row {cursor.number} of the stream: {self.name}"
            raise code_failed(place, error, cursor.number) from error
        cursor.number += 1
        return item

    def rewind(self, passes: int) -> None:
        """Begin to iterate again."""
        cursor = self.cursor
        cursor.rows, cursor.number, cursor.passes, cursor.moved = None, 0, passes, None
        if hasattr(self.owner, "set_epoch"):
            self.owner.set_epoch(passes)

    def state(self) -> Any:
        """Return the position as plain JSON values, if the stream can save it; else None."""
        owner = self.owner if self.cursor.moved is None else self.cursor.moved
        saves = hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict")
        if self.cursor.rows is None or not saves:
            return None
        try:
            return parse_json(json.dumps(owner.state_dict()), object, self.name)
        except Exception:  # the user's own code, or values that are not plain: it is replayed
            return None

    def _load(self, state: Any, passes: int) -> bool:
        """Return whether a copy of the object took the position."""
        self.rewind(passes)
        moved = self.owner
        with suppress(Exception):  # of the user's own class, which may hold an open file
            moved = copy.deepcopy(moved)
        try:
            moved.load_state_dict(state)
        except Exception:  # the user's own code: the stream is read up to there instead
            return False
        self.cursor.moved = moved
        return True

    def seek(self, starts: list[list[int]], state: Any, progress: Progress = silent) -> None:
        """Move to the last of `starts`, pairs of pass and row at which windows began.

        By the saved state, else by reading all rows of that pass up to there.
        """
        passes, number = starts[-1]
        if state is not None and self._load(state, passes):
            self.cursor.number = number
            return
        cursor = self.cursor
        if cursor.rows is None or cursor.passes != passes or cursor.number > number:
            self.rewind(passes)
        windows = {row: at for at, (other, row) in enumerate(starts) if other == passes}
        stage = "reading the stream up to where the run stopped"
        for row in range(cursor.number, number):
            if row in windows:
                seed_generators(0, windows[row])
            progress(stage, row, number)
            self.skip()
        progress(stage, number, number)


def open_stream(
    data: Any, named: NamedItems, start: Callable[[], Iterator[Any]] | None = None
) -> Table:
    """Return a Table of the first rows of a stream; it has them all where the stream ends before
    that.

    `start` begins to iterate where the rows are not those of `data` itself.
    """
    name = getattr(data, "__name__", type(data).__name__)
    owner = None if start is not None or inspect.isgeneratorfunction(data) else data
    begin = start or (data if inspect.isgeneratorfunction(data) else data.__iter__)
    with kept_randomness():
        seed_generators(0, 0)
        first = _First(begin())
        table = open_rows(named(first.take()))
    if first.ended:
        return table
    again = start is not None or not hasattr(type(data), "__next__")
    stream = Stream(begin, owner, name, again, table.arrow.schema)
    stream.cursor.rows, stream.cursor.number = first.rows, table.num_rows
    count = f"{table.num_rows:,}"
    message = (
        f"{name} is read as a stream; the plan is made with its first {count} rows. Whether later "
        "rows repeat validation rows is not checked."
    )
    found = note(message)
    return replace(table, live=stream, findings=(*table.findings, found))


@dataclass
class _First:
    """The first rows of an iterator, up to a number and a size."""

    rows: Iterator[Any]
    ended: bool = False

    def take(self) -> Iterator[Any]:
        """Yield the rows; afterwards, `ended` is whether there are no more."""
        size = 0
        for count, item in enumerate(self.rows, 1):
            yield item
            size += _size(item)
            if count == FIRST_ROWS or size > FIRST_BYTES:
                return
        self.ended = True


def _size(item: Any) -> int:
    """About how many bytes an item takes."""
    value = python_value(item)
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(_size(each) for each in value.values())
    if isinstance(value, list | tuple):
        return sum(_size(each) for each in value)
    return len(value) if isinstance(value, str | bytes) else 8
