"""What is gathered of a table's column in one pass over the training rows, in constant memory."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

import numpy as np

from surefit.data.data_rules import NOT_FINITE
from surefit.data.dates import ORDERS, read_date, read_time
from surefit.encode.encoded_row import RowFaultError

MAX_NUMBERS, MAX_TEXTS = 50, 1000
"""Different values of a column that are counted: numbers, and texts."""


@dataclass
class Series:
    """What is gathered of a column, or of a part of a date."""

    count: int = 0
    blanks: int = 0
    mean: float = 0.0
    squares: float = 0.0
    whole: bool = True
    rising: bool = True
    last: float = -math.inf
    first: float = math.nan
    texts: int = 0
    words: int = 0
    """Words in all texts, counted by their spaces."""
    values: Counter[Any] = field(default_factory=Counter)
    kinds: set[str] = field(default_factory=set)

    def add(self, value: Any) -> None:
        """Take in the value of one row; None is a blank."""
        if value is None:
            self.blanks += 1
            return
        most = MAX_TEXTS if isinstance(value, str) else MAX_NUMBERS
        if len(self.values) <= most or value in self.values:
            self.values[value] += 1
        if isinstance(value, str):
            self.kinds.add("text")
            self.texts += 1
            self.words += value.count(" ") + 1
            return
        self.kinds.add("number")
        self.first = float(value) if self.count == 0 else self.first
        self.count += 1
        step = value - self.mean
        self.mean += step / self.count
        self.squares += step * (value - self.mean)
        self.whole = self.whole and float(value).is_integer()
        self.rising = self.rising and value > self.last
        self.last = value

    @property
    def scale(self) -> float:
        """The standard deviation of numbers."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    @property
    def numbers_rows(self) -> bool:
        """Whether the values rise with the rows and lie close, as row numbers do."""
        close = self.count > 0.5 * (self.last - self.first + 1)
        return self.whole and self.rising and self.blanks == 0 and self.count >= 20 and close


@dataclass
class Column:
    """One column: its own values, and their parts for each order in which all of them are dates."""

    plain: Series = field(default_factory=Series)
    dates: dict[str, dict[str, Series]] = field(
        default_factory=lambda: {order: {} for order in ORDERS}
    )
    unreadable: bool = False

    def add(self, raw: Any) -> None:
        """Take in the cell of one row."""
        if isinstance(raw, list | tuple | dict | bytes | np.ndarray):
            self.unreadable = True
            return
        value = as_value(raw)
        self.plain.add(value)
        for order in [*self.dates] if value is not None else ():
            parts = date_parts(value, order)
            if parts is None:
                del self.dates[order]
            for name, part in (parts or {}).items():
                self.dates[order].setdefault(name, Series()).add(part)


def as_value(raw: Any) -> Any:
    """A cell as text, number or None for a blank; NaN is a blank, a date stays as its text.

    A duration is its number of seconds.
    """
    if isinstance(raw, str):
        return raw.strip() or None
    if isinstance(raw, date):  # a datetime is one, too
        return raw.isoformat()
    if isinstance(raw, timedelta):
        return raw.total_seconds()
    if raw is None or (isinstance(raw, float) and math.isnan(raw)):
        return None
    if isinstance(raw, bool | int | float):
        if math.isinf(raw):
            raise RowFaultError(NOT_FINITE, f"{raw} is not a finite number")
        return raw
    return str(raw)


def date_parts(value: Any, order: str) -> dict[str, int] | None:
    """The parts of a date or time, year, month and day in that order; None for other values.

    >>> date_parts("2011-03-05 14:30", "ymd")
    {'year': 2011, 'month': 3, 'day': 5, 'weekday': 5, 'hour': 14}
    >>> date_parts("14:30", "time")
    {'hour': 14, 'minute': 30}
    """
    if not isinstance(value, str):
        return None
    if order == "time":
        clock = read_time(value)
        return None if clock is None else {"hour": clock.hour, "minute": clock.minute}
    at = read_date(value, order)
    if at is None:
        return None
    parts = {"year": at.year, "month": at.month, "day": at.day}
    return {**parts, "weekday": at.weekday(), "hour": at.hour}
