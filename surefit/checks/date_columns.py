"""Columns of a table that hold dates: written as numbers, in mixed formats, with other cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.checks.shapes import ODD_SHAPE, find_shape
from surefit.config import set_option
from surefit.data.column_types import is_text
from surefit.data.profile import Profile
from surefit.data.table import Table
from surefit.data.written_values import MISSING_MARKERS, ORDERS, is_date, is_missing, read_date
from surefit.findings import Finding, rule
from surefit.inputs.encoder import Encoder

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
FEWEST_ROWS, FEWEST_VALUES = 20, 5
ALMOST_ALL = 0.99
NAMED = re.compile(r"date|time|(^|_)(day|ts|epoch|created|updated|when|at|on|dt|timestamp)($|_)")
"""Column names that make a number in the range of a clock a date."""
EXACT = 60.0
"""Seconds: numbers without such a name are dates if they are whole minutes."""


def _digits(values: Numbers) -> Flags:
    """Return whether numbers are year, month and day in digits."""
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


def check_number_dates(table: Table, column: str) -> Iterator[Finding]:
    """A column of numbers nearly all of which are dates in one notation, judged on a sample."""
    parts = [part.cast(pa.float64(), safe=False) for _, part in table.profile(column).spread()]
    values = np.concatenate([np.empty(0), *(part.drop_null().to_numpy() for part in parts)])
    values = values[np.isfinite(values)]
    notation = find_notation(values, column)
    if notation is None:
        return
    fits = np.unique(values[notation.fits(values)])[:3].tolist()
    shown = ", ".join(f"{value:.0f} ({notation.read(value)})" for value in fits)
    message = f"column {column!r} holds dates as {notation.name}: {shown}."
    fix = (
        f"Write them as dates: df[{column!r}] = pandas.to_datetime(df[{column!r}], "
        f"{notation.call}). Or leave the column out: {set_option('ignore', column)}."
    )
    yield DATES_AS_NUMBERS.finding(message, fix=fix, column=column)


def find_notation(values: Numbers, name: str) -> _Notation | None:
    """Return the notation of dates that nearly all numbers have; None where they are other numbers.

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
    "dates that are mixed, unclear or not all dates",
    why="Some dates begin with the year and others do not, or no day is above 12, so that 3/4/2023 "
    "may be in March or in April: the order of day and month was inferred. A column with cells "
    "that are no date is text that differs in nearly every row, and is left out.",
    fix="Write all dates as 2023-01-31, and leave other cells blank.",
    accept="The dates are read, or the column is left out, as reported.",
)

LOOKED_AT = 1000
MOSTLY = 0.8
"""Share of the first cells that must be dates before a column is said to hold dates."""
Cell = tuple[int, str]
"""A row and its text."""


@dataclass
class _Dates:
    """What one pass over the cells of a text column found."""

    others: int = 0
    """Cells that are no date."""
    first_other: Cell | None = None
    by_year: dict[bool, Cell] = field(default_factory=dict)
    """The first date that begins with the year, and the first that does not."""
    orders: frozenset[str] = frozenset(ORDERS)
    """Orders of day and month that all dates so far have."""
    other_order: Cell | None = None
    """The first date that no order of the dates before it fits."""
    ambiguous: Cell | None = None
    """The first date that means another day if day and month are exchanged."""

    def add(self, cell: Cell) -> None:
        """Read one cell."""
        text = cell[1]
        if not is_date(text):
            self.others += 1
            self.first_other = self.first_other or cell
            return
        read = {order: read_date(text, order) for order in ("ymd", "mdy", "dmy")}
        self.by_year.setdefault(read["ymd"] is not None, cell)
        if self.orders:
            fit = {order for order, date in read.items() if date is not None}
            self.orders = frozenset(o for o in self.orders if not fit.isdisjoint(o.split(" or ")))
            self.other_order = None if self.orders else cell
        if self.ambiguous is None and read["mdy"] != read["dmy"]:
            self.ambiguous = cell


def check_text_dates(table: Table, column: str, encoder: Encoder) -> Iterator[Finding]:
    """Yield a text column that holds dates, and how they are read."""
    orders = {part.column: part.order or "" for part in encoder.input.columns or ()}
    order = orders.get(column)
    if not is_text(table.column_type(column)):
        return
    if order:
        yield from _check_far(table, column, order)
    if order is not None and order != "mdy" and " or " not in order:
        return
    dates = _read(table.profile(column))
    problem = None if dates is None else _find_problem(column, order, dates)
    if problem is not None:
        (row, _), message, fix = problem
        message = f"column {column!r} {message}"
        yield UNCLEAR_DATES.finding(message, table.where(row), fix=fix, column=column)


def _check_far(table: Table, column: str, order: str) -> Iterator[Finding]:
    """Yield one date that repeats far from all others, on a sample: it may stand for none."""
    read = [
        (row, text, date.toordinal())
        for rows, part in table.profile(column).spread()
        for row, text in zip(rows.tolist(), part.to_pylist(), strict=True)
        if text and (date := read_date(text.strip(), order)) is not None
    ]
    numbers = np.array([number for *_, number in read], np.float64)
    shape = find_shape(numbers)
    hits = np.flatnonzero(shape.hits) if shape is not None else []
    if len(hits) and len({*numbers[hits].tolist()}) == 1:
        row, text, _ = read[int(hits[0])]
        yield ODD_SHAPE.finding(
            f"column {column!r}: {len(hits):,} of {len(read):,} dates looked at are {text!r}, far "
            f"from all others: row {table.where(row)['row']}, for example.",
            table.where(row),
            fix=f"Leave the cells blank where {text!r} means that the date is missing.",
            column=column,
        )


def _read(profile: Profile) -> _Dates | None:
    """Read all cells, but for blanks and markers of missing values; None for no dates."""
    dates, seen = _Dates(), 0
    for start, part in profile.slices():
        for row, cell in enumerate(part, start):
            text = (cell.as_py() or "").strip()
            if text and not is_missing(text, MISSING_MARKERS):
                dates.add((row, text))
                seen += 1
                if seen == LOOKED_AT and dates.others > (1 - MOSTLY) * seen:
                    return None
    return dates if seen and dates.others <= (1 - MOSTLY) * min(seen, LOOKED_AT) else None


def _find_problem(column: str, order: str | None, dates: _Dates) -> tuple[Cell, str, str] | None:
    """Return the cell to show, what is wrong with the dates, and the fix; None where nothing is.

    Without an `order`, the column is not read.
    """
    to_dates = f"df[{column!r}] = pandas.to_datetime(df[{column!r}], "
    if order is None:
        cell = dates.first_other or dates.other_order
        if cell is None:
            return None  # the column is left out for another reason, such as a single value
        rows = "one row" if dates.others == 1 else f"{dates.others:,} rows"
        what = f"but not in {rows}" if dates.others else "of two orders of day and month"
        return (
            cell,
            f"holds dates, {what}: row {cell[0]} has {cell[1][:40]!r}; the column is left out.",
            f"Correct these cells, or make them blank: {to_dates}errors='coerce'). Or leave the "
            f"column out: {set_option('ignore', column)}.",
        )
    if order != "mdy":
        other = order.removeprefix("ymd or ")
        one, two = sorted(dates.by_year.values())
        return (
            two,
            f"mixes formats of dates: {one[1]!r} (row {one[0]}) and {two[1]!r} (row {two[0]}). "
            "Those that do not begin with the year are read with the "
            f"{'month' if other == 'mdy' else 'day'} first.",
            f"Write them alike: {to_dates}format='mixed', dayfirst={other == 'dmy'}).",
        )
    cell = dates.ambiguous
    if cell is None or "dmy" not in dates.orders:
        return None
    read = read_date(cell[1], "mdy")
    assert read is not None
    return (
        cell,
        f"holds {cell[1]!r} (row {cell[0]}), which is read as {read:%Y-%m-%d}, with the month "
        "first; no date of the column shows whether that is right.",
        f"Write them as dates: {to_dates}dayfirst=True) if the day is first, else dayfirst=False.",
    )
