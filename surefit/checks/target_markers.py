"""Numbers that stand for a missing target of regression: -1, -999, 9999."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from surefit.checks.class_names import SENTINELS
from surefit.checks.magnitudes import column_chunks
from surefit.data.column_types import is_number
from surefit.data.table import Table
from surefit.findings import Finding, rule

MISSING_AS_TARGET = rule(
    "SF249",
    "warning",
    "marker of a missing target",
    why="The model would learn to predict the marker, and errors on it outweigh all others.",
    fix="Leave the target blank in these rows; they are then dropped and counted.",
    accept="The values are trained on as targets.",
)

FEWEST_ROWS = 20
NEAR = 0.05
"""A marker next to the other values is as far as this share of their range from all of them ..."""
FREQUENT = 5
"""... or so many times as frequent as any of them."""
SHOWN = 3


def is_marker(value: float) -> bool:
    """Whether people write the number for a missing value.

    >>> [n for n in (-1, 0, 7, 99, 100, -999, 9999, 98, -9999.0, 1e20) if is_marker(n)]
    [-1, 99, -999, 9999, -9999.0, 1e+20]
    """
    if not float(value).is_integer():
        return False
    digits = f"{abs(value):.0f}"
    nines = len(digits) >= 2 and set(digits) == {"9"}
    return nines or int(value) in SENTINELS or abs(value) >= 1e18 or int(value) == -(2**31)


def check_target_markers(table: Table, column: str) -> Iterator[Finding]:
    """A repeated marker below or above all other targets."""
    if not is_number(table.column_type(column)) or table.num_rows < FEWEST_ROWS:
        return
    ends = pc.min_max(table.arrow[column].cast("float64", safe=False).drop_null()).as_py()
    for marker in (ends["min"], ends["max"]):
        if marker is None or not np.isfinite(marker) or not is_marker(marker):
            continue
        rows, low, high = _split(table, column, marker)
        if len(rows) < 2 or low >= high or 2 * len(rows) > table.num_rows:
            continue
        gap = low - marker if marker < low else marker - high
        is_far = gap > high - low
        if is_far or (
            marker < 0 <= low and _stands_out(table, column, len(rows), gap / (high - low))
        ):
            yield _marked(table, column, marker, (rows, low, high))


def _split(table: Table, column: str, marker: float) -> tuple[list[int], float, float]:
    """The rows that hold the marker, and the range of the other targets."""
    rows: list[int] = []
    low, high = np.inf, -np.inf
    for start, values in column_chunks(table, column):
        rows += (start + np.flatnonzero(values == marker)).tolist()
        rest: npt.NDArray[Any] = values[np.isfinite(values) & (values != marker)]
        low, high = min(low, rest.min(initial=np.inf)), max(high, rest.max(initial=-np.inf))
    return rows, float(low), float(high)


def _stands_out(table: Table, column: str, count: int, distance: float) -> bool:
    """Whether a negative number beside others from 0 on is no value as any other."""
    if distance > NEAR:
        return True
    counts = np.sort(np.asarray(pc.value_counts(table.arrow[column]).field("counts")))
    return count >= 10 and len(counts) > FREQUENT and count >= FREQUENT * int(counts[-2])


def _marked(
    table: Table, column: str, marker: float, found: tuple[list[int], float, float]
) -> Finding:
    rows, low, high = found
    where = table.where(rows[0])
    numbers = ", ".join(str(table.where(row)["row"]) for row in rows[:SHOWN])
    message = (
        f"column {column!r}: {len(rows):,} of {table.num_rows:,} rows have the target {marker:g} "
        f"(rows {numbers}); all others are between {low:g} and {high:g}."
    )
    fix = (
        f"Leave the target blank in these rows: df[{column!r}] = df[{column!r}].replace"
        f"({marker:g}, None). They are then dropped and counted."
    )
    return MISSING_AS_TARGET.finding(message, where, fix=fix, column=column)
