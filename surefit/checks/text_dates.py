"""Text columns of a table that hold dates: mixed formats, unclear orders, other cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from surefit.config import set_option
from surefit.data.column_types import is_text
from surefit.data.dates import ORDERS, is_date, read_date
from surefit.data.table import Table
from surefit.findings import Finding, rule

MIXED_DATES = rule(
    "SF268",
    "warning",
    "dates in mixed formats",
    why="Some dates begin with the year and others do not, as if two files had been joined. They "
    "are read, each in its own format, but the order of day and month was inferred.",
    fix="Write all dates as 2023-01-31.",
    accept="The dates are read as reported.",
)

UNCLEAR_DATES = rule(
    "SF269",
    "warning",
    "day and month of dates cannot be told apart",
    why="No date of the column has a day above 12, so that 3/4/2023 may be in March or in April.",
    fix="Write the dates as 2023-01-31.",
    accept="The month is read first.",
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
    """Each cell that is not blank, with its row."""
    row = 0
    for chunk in table.arrow[column].chunks:
        for start in range(0, len(chunk), LOOKED_AT):
            for value in chunk.slice(start, LOOKED_AT).to_pylist():
                if value is not None and value.strip():
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
    return MIXED_DATES.finding(
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
