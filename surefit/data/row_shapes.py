"""Sizes of the axes of a column's rows, measured without reading the values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surefit.data.column_types import is_list
from surefit.data.table import Table

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
    """The shape of rows of equal size.

    >>> print(fixed_shape(20, 271))
    [20, 271]
    """
    return RowShape(tuple(Axis(size, size, size) for size in sizes))


def row_shape(table: Table, column: str) -> RowShape:
    """Measure a column of arrays; for integers in one axis, also the range of the values.

    >>> from surefit.data.python.dataframes import open_columns
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
