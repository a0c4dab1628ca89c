"""Arrays with a value per row: mapped from files of their own, so that they take no memory.

A page that was written is kept by the system as long as there is room, and read again otherwise.
What is computed from such arrays is computed a block of rows at a time.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from surefit.data.cache import open_cache
from surefit.data.column_types import is_list
from surefit.data.table import Table

Array = npt.NDArray[Any]
FEW_ROWS = 1 << 16
"""Arrays of fewer rows are kept in memory."""
BLOCK_ROWS = 1 << 16


def new_array(num_rows: int, dtype: Any) -> Array:
    """Return an array of zeros in a file of the cache that has no name, and ends with the array.

    In memory, if it is small, or if there is no room on the disk.
    """
    kind = np.dtype(dtype)
    if num_rows <= FEW_ROWS:
        return np.zeros(num_rows, kind)
    try:
        with tempfile.TemporaryFile(dir=open_cache()) as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk would end the process
                os.posix_fallocate(file.fileno(), 0, num_rows * kind.itemsize)
            mapped = np.memmap(file, kind, "r+", shape=(num_rows,))
            return mapped.view(np.ndarray)
    except OSError:
        return np.zeros(num_rows, kind)


def blocks(num_rows: int) -> Iterator[slice]:
    """Neighbouring rows, some at a time.

    >>> list(blocks(3))
    [slice(0, 3, None)]
    """
    for start in range(0, num_rows, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, num_rows))


def number_rows(num_rows: int) -> Array:
    """Return the numbers 0, 1, 2 …"""
    made = new_array(num_rows, np.int64)
    for part in blocks(num_rows):
        made[part] = np.arange(part.start, part.stop)
    return made


def take(values: Array, rows: Array) -> Array:
    """`values[rows]`."""
    made = new_array(len(rows), values.dtype)
    for part in blocks(len(rows)):
        made[part] = values[rows[part]]
    return made


def places_of(chosen: npt.NDArray[np.bool_], wanted: bool = True) -> Array:
    """Return where the value is the wanted one, ascending.

    >>> places_of(np.array([True, False, True])).tolist()
    [0, 2]
    """
    count = int(np.count_nonzero(chosen))
    made = new_array(count if wanted else len(chosen) - count, np.int64)
    end = 0
    for part in blocks(len(chosen)):
        found = np.flatnonzero(chosen[part] == wanted) + part.start
        made[end : end + len(found)] = found
        end += len(found)
    return made


def distinct(values: Array) -> tuple[Array, Array]:
    """Return the different values, ascending, and how often each occurs.

    >>> [found.tolist() for found in distinct(np.array([7, 5, 7], np.uint64))]
    [[5, 7], [1, 2]]
    """
    ordered = new_array(len(values), values.dtype)
    ordered[:] = values
    ordered.sort()
    begins = np.empty(len(values), bool)
    for part in blocks(len(values)):
        before = ordered[max(part.start - 1, 0) : part.stop - 1]
        begins[part.start + (part.start == 0) : part.stop] = (
            ordered[part][int(part.start == 0) :] != before
        )
    begins[:1] = True
    starts = places_of(begins)
    del begins
    names, sizes = take(ordered, starts), new_array(len(starts), np.int64)
    for part in blocks(len(starts)):
        ends = starts[part.start + 1 : part.stop + 1]
        if len(ends) < part.stop - part.start:
            ends = np.append(ends, len(values))
        sizes[part] = ends - starts[part]
    return names, sizes


def count_distinct(values: Array) -> int:
    """Return how many different values there are."""
    return len(distinct(values)[0])


def is_among(values: Array, ordered: Array) -> npt.NDArray[np.bool_]:
    """Return which values occur in an ascending array.

    >>> is_among(np.array([3, 4]), np.array([1, 3])).tolist()
    [True, False]
    """
    found = np.zeros(len(values), bool)
    if len(ordered):
        for part in blocks(len(values)):
            place = np.minimum(np.searchsorted(ordered, values[part]), len(ordered) - 1)
            found[part] = ordered[place] == values[part]
    return found


MOSTLY_EQUAL = 0.9
"""If at least this share of rows has the same size, rows of another size are faulty."""


@dataclass(frozen=True)
class Axis:
    """One axis over all non-empty rows: its smallest and largest size.

    `divisor` is the greatest common divisor of the sizes, `common` the share of the most frequent
    size, `usual`.
    """

    least: int
    most: int
    divisor: int
    common: float = 1.0
    frequent: int | None = None

    @property
    def usual(self) -> int:
        """The most frequent size."""
        return self.most if self.frequent is None else self.frequent

    @property
    def size(self) -> int | None:
        """The size, if it is the same in all rows; else None."""
        return self.least if self.least == self.most else None

    @property
    def is_ragged(self) -> bool:
        """Whether sizes vary as sequence lengths do, and not only in a row or two."""
        return self.common < MOSTLY_EQUAL

    def __str__(self) -> str:
        return str(self.least) if self.size is not None else f"{self.least}…{self.most}"


@dataclass(frozen=True)
class RowShape:
    """The axes of one row, and the range of its values if they are integers."""

    axes: tuple[Axis, ...]
    value_range: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.axes))}]"


def fixed_shape(*sizes: int) -> RowShape:
    """Return the shape of rows of equal size.

    >>> print(fixed_shape(20, 271))
    [20, 271]
    """
    return RowShape(tuple(Axis(size, size, size) for size in sizes))


def row_shape(table: Table, column: str) -> RowShape:
    """Measure a column of arrays; for integers in one axis, also the range of the values.

    >>> from surefit.data.python.objects import open_columns
    >>> print(row_shape(open_columns({"x": np.zeros((5, 20, 3), np.float32)}), "x"))
    [20, 3]
    """
    level: Sequence[pa.Array] = table.arrow[column].chunks
    axes = []
    while level and is_list(level[0].type):
        axes.append(_axis(level))
        level = [chunk.flatten() for chunk in level]
    whole = bool(level) and pa.types.is_integer(level[0].type)
    return RowShape(tuple(axes), _range(level) if whole and len(axes) == 1 else None)


def _axis(chunks: Sequence[pa.Array]) -> Axis:
    if pa.types.is_fixed_size_list(chunks[0].type):
        size = chunks[0].type.list_size
        return Axis(size, size, size)
    counts = Counter[int]()
    for chunk in chunks:
        found, times = np.unique(
            np.asarray(pc.list_value_length(chunk).drop_null()), return_counts=True
        )
        counts.update(dict(zip(found.tolist(), times.tolist(), strict=True)))
    del counts[0]  # an empty row has no sequence length
    if not counts:
        return Axis(0, 0, 0)
    usual, times_seen = counts.most_common(1)[0]
    share = times_seen / counts.total()
    return Axis(min(counts), max(counts), math.gcd(*counts), share, usual)


def _range(chunks: Sequence[pa.Array]) -> tuple[int, int] | None:
    found = [pc.min_max(chunk).as_py() for chunk in chunks if len(chunk)]
    known = [each for each in found if each["min"] is not None]
    if not known:
        return None
    return min(each["min"] for each in known), max(each["max"] for each in known)
