"""Columns of a table that hold dates: written as numbers, in mixed formats, with other cells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.checks.shapes import ODD_SHAPE, find_shape, report
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


@dataclass(frozen=True)
class _Notation:
    """A way to write dates as numbers: digits in a pattern, or units since 1970."""

    name: str
    call: str
    """The argument of the pandas call that reads it."""
    pattern: str = ""
    digits: int = 0
    per_second: float = 0.0
    """Of a clock: its units in a second. Ids and phone numbers are such numbers, too."""

    def read(self, value: float) -> str | None:
        """Return the date that a number stands for; None where it is none."""
        if self.per_second:
            return f"{datetime.fromtimestamp(value / self.per_second, UTC):%Y-%m-%d %H:%M}"
        try:
            date = datetime.strptime(f"{value:.0f}", self.pattern)
        except ValueError:
            return None
        return f"{date:%Y-%m-%d}" if 1900 <= date.year <= 2100 else None

    def fits(self, values: Numbers) -> Flags:
        """Return which numbers are dates."""
        if self.per_second:
            return np.asarray(
                (values / self.per_second >= 5e8) & (values / self.per_second <= 2.5e9)
            )
        known: Flags = (values % 1 == 0) & (values >= 19 * 10.0 ** (self.digits - 2))
        known &= values < 10.0**self.digits
        if known.mean() >= ALMOST_ALL:
            known[known] = [self.read(value) is not None for value in values[known].tolist()]
        return known


NOTATIONS = (
    _Notation("YYYYMMDD", "format='%Y%m%d'", "%Y%m%d", 8),
    _Notation("YYYYMM", "format='%Y%m'", "%Y%m", 6),
    _Notation("YYYYMMDDhhmmss", "format='%Y%m%d%H%M%S'", "%Y%m%d%H%M%S", 14),
    _Notation("seconds since 1970", "unit='s'", per_second=1.0),
    _Notation("milliseconds since 1970", "unit='ms'", per_second=1e3),
    _Notation("microseconds since 1970", "unit='us'", per_second=1e6),
    _Notation("nanoseconds since 1970", "unit='ns'", per_second=1e9),
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
    hits = np.flatnonzero(shape.hits) if shape is not None else np.empty(0, np.int64)
    if len(hits) and len({*numbers[hits].tolist()}) == 1:
        rows, texts = np.array([row for row, *_ in read]), [text for _, text, _ in read]
        odd = texts[int(hits[0])]
        what = f"column {column!r}: # of {len(read):,} dates looked at are far from all others"
        fix = f"Leave the cells blank where {odd!r} means that the date is missing."
        yield report(ODD_SHAPE, what, rows[hits], table.where, [odd] * 3, fix, column)


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
