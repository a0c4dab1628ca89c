"""Columns of a table that hold dates: written as numbers, in mixed formats, with other cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.config import set_option
from surefit.data.column_types import is_number, is_text
from surefit.data.dates import ORDERS, is_date, read_date
from surefit.data.missing_values import is_missing
from surefit.data.numbers import MISSING_MARKERS
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


UNCLEAR_DATES = rule(
    "SF268",
    "warning",
    "dates of mixed or unclear formats",
    why="Some dates begin with the year and others do not, or no day is above 12, so that 3/4/2023 "
    "may be in March or in April. The order of day and month was inferred.",
    fix="Write all dates as 2023-01-31.",
    accept="The dates are read as reported.",
)

NOT_ALL_DATES = rule(
    "SF264",
    "warning",
    "a column of dates with cells that are no date",
    why="A column is read as dates only if all its cells are dates or blank; otherwise it is text "
    "that differs in nearly every row, and is left out.",
    fix="Correct these cells, or leave them blank.",
    accept="The column is left out.",
)

LOOKED_AT = 1000
MOSTLY = 0.8
"""Share of the first cells that must be dates before a column is said to hold dates."""


def check_text_dates(
    table: Table, columns: Sequence[str], parts: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """Text columns that hold dates, and how they are read."""
    orders = {part["column"]: part.get("order", "") for part in parts}
    for column in columns:
        if not is_text(table.column_type(column)):
            continue
        order = orders.get(column)
        if order is None:
            yield from _check_unread(table, column)
        elif " or " in order:
            yield _describe_mixed(table, column, order)
        elif order == "mdy":
            yield from _check_unclear(table, column)


def _cells(table: Table, column: str) -> Iterator[tuple[int, str]]:
    """Each cell that is neither blank nor a marker of a missing value, with its row."""
    row = 0
    for chunk in table.arrow[column].chunks:
        for start in range(0, len(chunk), LOOKED_AT):
            for value in chunk.slice(start, LOOKED_AT).to_pylist():
                if value and value.strip() and not is_missing(value, MISSING_MARKERS):
                    yield row, value.strip()
                row += 1


def _check_unread(table: Table, column: str) -> Iterator[Finding]:
    """A column that is not read, although most of its cells are dates."""
    seen = hits = 0
    for _, text in _cells(table, column):
        seen, hits = seen + 1, hits + is_date(text)
        if seen == LOOKED_AT:
            break
    if not seen or hits < MOSTLY * seen:
        return
    row, text, count = -1, "", 0
    for at, cell in _cells(table, column):
        if not is_date(cell):
            row, text = (at, cell) if row < 0 else (row, text)
            count += 1
    if row < 0:
        other = _first_of_other_order(table, column)
        if other is None:
            return  # the column is left out for another reason, such as a single value
        row, text = other
        what = f"of two orders of day and month: row {row} has {text[:40]!r}"
    else:
        rows = "one row" if count == 1 else f"{count:,} rows"
        what = f"but not in {rows}: row {row} has {text[:40]!r}"
    to_dates = f"df[{column!r}] = pandas.to_datetime(df[{column!r}], errors='coerce')"
    yield NOT_ALL_DATES.finding(
        f"column {column!r} holds dates, {what}; the column is left out.",
        table.where(row),
        fix=f"Correct these cells, or make them blank: {to_dates}. Or leave the column out: "
        f"{set_option('ignore', column)}.",
        column=column,
    )


def _first_of_other_order(table: Table, column: str) -> tuple[int, str] | None:
    """The first date that the order of the dates before it does not fit; None if all are alike."""
    left = set(ORDERS)
    for row, text in _cells(table, column):
        left = {order for order in left if read_date(text, order) is not None}
        if not left:
            return row, text
    return None


def _describe_mixed(table: Table, column: str, order: str) -> Finding:
    other = order.removeprefix("ymd or ")
    found: dict[bool, tuple[int, str]] = {}
    for row, text in _cells(table, column):
        found.setdefault(read_date(text, "ymd") is not None, (row, text))
        if len(found) == 2:
            break
    (first, one), (second, two) = sorted(found.values())
    first_in = "month" if other == "mdy" else "day"
    to_iso = (
        f"df[{column!r}] = pandas.to_datetime(df[{column!r}], format='mixed', "
        f"dayfirst={other == 'dmy'})"
    )
    return UNCLEAR_DATES.finding(
        f"column {column!r} mixes formats of dates: {one!r} (row {first}) and {two!r} (row "
        f"{second}). Those that do not begin with the year are read with the {first_in} first.",
        table.where(second),
        fix=f"Write them alike: {to_iso}.",
        column=column,
    )


def _check_unclear(table: Table, column: str) -> Iterator[Finding]:
    """Dates of which none has a day above 12, and that mean another day the other way round."""
    example: tuple[int, str] | None = None
    for row, text in _cells(table, column):
        one, other = read_date(text, "mdy"), read_date(text, "dmy")
        if other is None:
            return
        if example is None and one != other:
            example = row, text
    if example is None:
        return
    row, text = example
    read = read_date(text, "mdy")
    assert read is not None
    yield UNCLEAR_DATES.finding(
        f"column {column!r}: {text!r} (row {row}) is read as {read:%Y-%m-%d}, with the month "
        "first; no date of the column shows whether that is right.",
        table.where(row),
        fix=f"Write them as dates: df[{column!r}] = pandas.to_datetime(df[{column!r}], "
        "dayfirst=True) if the day is first, else dayfirst=False.",
        column=column,
    )
