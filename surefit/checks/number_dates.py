"""Columns of a table in which dates are written as numbers: 20230131, or seconds since 1970."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.config import set_option
from surefit.data.column_types import is_number
from surefit.data.table import Table
from surefit.findings import Finding, rule

DATES_AS_NUMBERS = rule(
    "SF245",
    "warning",
    "dates written as numbers",
    why=(
        "As numbers, they hide month, weekday and hour from the model, and the steps between them "
        "are wrong: 20230201 is 70 more than 20230131."
    ),
    fix="Write them as dates (2023-01-31); then year, month, day, weekday and hour are read.",
    accept="The column is read as plain numbers.",
)

Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
MAX_ROWS = 20_000
FEWEST_ROWS, FEWEST_VALUES = 20, 5
ALMOST_ALL = 0.99
NAMED = re.compile(r"date|time|(^|_)(day|ts|epoch|created|updated|when|at|on|dt|timestamp)($|_)")
"""Column names that make a number in the range of a clock a date."""
EXACT = 60.0
"""Seconds: numbers without such a name are dates if they are whole minutes."""


def _digits(values: Numbers) -> Flags:
    """Whether numbers are year, month and day in digits."""
    years, months, days = values // 10_000, values // 100 % 100, values % 100
    known: Flags = (years >= 1900) & (years <= 2100) & (months >= 1) & (months <= 12)
    most = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
    fits: Flags = known & (days >= 1) & (days <= most[np.where(known, months, 0).astype(int)])
    return fits


def _months(values: Numbers) -> Flags:
    return (values >= 190_001) & (values <= 210_012) & (values % 100 >= 1) & (values % 100 <= 12)


@dataclass(frozen=True)
class _Notation:
    """A way to write dates as numbers, the pandas call that reads it, and one date read."""

    name: str
    fits: Callable[[Numbers], Flags]
    call: str
    read: Callable[[float], str]
    per_second: float = 0.0
    """Of a clock: its units in a second. Ids and phone numbers are such numbers, too."""


def _clock(name: str, unit: str, per_second: float) -> _Notation:
    return _Notation(
        name,
        lambda values: (5e8 * per_second <= values) & (values <= 2.5e9 * per_second),
        f"unit={unit!r}",
        lambda value: f"{datetime.fromtimestamp(value / per_second, UTC):%Y-%m-%d %H:%M}",
        per_second,
    )


def _written(pattern: str) -> Callable[[float], str]:
    return lambda value: f"{datetime.strptime(str(int(value)), pattern):%Y-%m-%d}"


NOTATIONS = (
    _Notation("YYYYMMDD", _digits, "format='%Y%m%d'", _written("%Y%m%d")),
    _Notation("YYYYMM", _months, "format='%Y%m'", _written("%Y%m")),
    _Notation(
        "YYYYMMDDhhmmss",
        lambda values: _digits(values // 1_000_000) & (values % 1_000_000 < 240_000),
        "format='%Y%m%d%H%M%S'",
        lambda value: _written("%Y%m%d")(value // 1_000_000),
    ),
    _clock("seconds since 1970", "s", 1.0),
    _clock("milliseconds since 1970", "ms", 1e3),
    _clock("microseconds since 1970", "us", 1e6),
    _clock("nanoseconds since 1970", "ns", 1e9),
)


def check_number_dates(table: Table, columns: Sequence[str]) -> Iterator[Finding]:
    """Columns of numbers nearly all of which are dates in one notation, judged on a sample."""
    for column in columns:
        kind = table.column_type(column)
        if not is_number(kind) or pa.types.is_boolean(kind):
            continue
        values = _sample(table, column)
        notation = find_notation(values, column)
        if notation is None:
            continue
        fits = np.unique(values[notation.fits(values)])[:3].tolist()
        shown = ", ".join(f"{value:.0f} ({notation.read(value)})" for value in fits)
        message = f"column {column!r} holds dates as {notation.name}: {shown}."
        fix = (
            f"Write them as dates: df[{column!r}] = pandas.to_datetime(df[{column!r}], "
            f"{notation.call}). Or leave the column out: {set_option('ignore', column)}."
        )
        yield DATES_AS_NUMBERS.finding(message, fix=fix, column=column)


def _sample(table: Table, column: str) -> Numbers:
    """Numbers spread evenly over the rows, without blanks."""
    stride = -(-table.num_rows // MAX_ROWS) or 1
    rows = pa.array(np.arange(0, table.num_rows, stride, dtype=np.int64))
    taken = table.arrow[column].take(rows).cast(pa.float64(), safe=False)
    values = np.asarray(taken.drop_null().to_numpy(), np.float64)
    return values[np.isfinite(values)]


def find_notation(values: Numbers, name: str) -> _Notation | None:
    """The notation of dates that nearly all numbers have; None where they are other numbers.

    >>> find_notation(np.arange(20230101.0, 20230129), "x").name
    'YYYYMMDD'
    >>> find_notation(np.arange(1990.0, 2021), "year")
    """
    distinct = np.unique(values)
    if len(values) < FEWEST_ROWS or len(distinct) < FEWEST_VALUES:
        return None
    for notation in NOTATIONS:
        if notation.fits(values).mean() < ALMOST_ALL:
            continue
        if (values % 1 != 0).any() and not notation.per_second:
            continue
        whole = distinct % (EXACT * notation.per_second or 1) == 0
        if not notation.per_second or NAMED.search(name.lower()) or whole.mean() > ALMOST_ALL:
            return notation
    return None
