"""Columns of a table: what is gathered of each, and the vectors that rows become."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.data.data_rules import NOT_FINITE
from surefit.data.written_values import ORDERS, read_date, read_number, read_time
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import TablePart
from surefit.inputs.store import Store

Array = npt.NDArray[Any]


def part_places(encoder: Encoder) -> Iterator[tuple[TablePart, int, int]]:
    """Yield each part of the vector, and where it starts and ends."""
    start = 0
    for part in encoder.input.columns or ():
        yield part, start, start + part.width
        start += part.width


def is_table(encoder: Encoder, store: Store) -> bool:
    """Whether encoded rows are those of a table, with a part of the vector for each column."""
    return encoder.input.columns is not None and "features" in store.fields


def spread_rows(store: Store, limit: int) -> Array:
    """Return the numbers of at most `limit` rows, spread evenly."""
    return np.linspace(0, len(store) - 1, min(limit, len(store))).astype(np.int64)


def feature_rows(store: Store, rows: Array | slice) -> Array:
    """Return the vectors of some rows, (N, W)."""
    width = int(store.offsets("features")[1]) if len(store) else 0
    return np.asarray(store.values("features").reshape(-1, width)[rows])


@dataclass(frozen=True)
class ColumnMatrix:
    """Reads one value per column: the number, NaN for a blank; or the number of the category."""

    places: tuple[tuple[TablePart, int, int], ...]

    @classmethod
    def of(cls, encoder: Encoder) -> ColumnMatrix:
        """Numbers with few values are parts twice; their categories are left out."""
        places = [*part_places(encoder)]
        numbers = {(part.column, part.part) for part, _, _ in places if part.kind == "number"}
        return cls(
            tuple(
                (part, start, end)
                for part, start, end in places
                if part.kind == "number" or (part.column, part.part) not in numbers
            )
        )

    @property
    def categories(self) -> list[int]:
        """The columns of the matrix that hold categories."""
        return [at for at, (part, _, _) in enumerate(self.places) if part.kind == "category"]

    def read(self, vectors: Array) -> Array:
        """Vectors (N, W) to one value per column, (N, C)."""
        columns = []
        for part, start, end in self.places:
            if part.kind == "category":
                columns.append(vectors[:, start:end].argmax(1).astype(np.float32))
            elif part.blank:
                blank = vectors[:, start + 1] > 0.5
                columns.append(np.where(blank, np.float32(np.nan), vectors[:, start]))
            else:
                columns.append(vectors[:, start])
        return np.stack(columns, 1).astype(np.float32)


MAX_VALUES = 1000
"""Different values of a column that are counted."""
RECURS = 10
"""Rows per different value, on average, in a column that is read although it has many."""
CODES_DIFFER = 1.5
"""Variance of targets between neighbouring codes, relative to that among the rows of one."""


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
    targets: defaultdict[float, float] = field(default_factory=lambda: defaultdict(float))
    """The sum of the targets of each number."""
    target_squares: float = 0.0
    kinds: set[str] = field(default_factory=set)

    def add(self, value: Any, target: float = 0.0) -> None:
        """Take in the value of one row and its target; None is a blank."""
        if value is None:
            self.blanks += 1
            return
        if len(self.values) <= MAX_VALUES or value in self.values:
            self.values[value] += 1
        if isinstance(value, str):
            self.kinds.add("text")
            self.texts += 1
            self.words += value.count(" ") + 1
            return
        self.kinds.add("number")
        if value in self.values:
            self.targets[value] += target
            self.target_squares += target * target
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
    def are_codes(self) -> bool:
        """Whether whole numbers recur and stand for things, such as shops, rather than amounts.

        The targets of neighbouring amounts are alike. Those of codes differ by more than the rows
        of one code do.
        """
        count, values = self.count, sorted(self.values)
        if not self.whole or not 2 < len(values) <= MAX_VALUES or RECURS * len(values) > count:
            return False
        sizes = np.array([self.values[value] for value in values])
        means = np.array([self.targets[value] for value in values]) / sizes
        within = (self.target_squares - (sizes * means**2).sum()) / (count - len(values))
        apart = np.diff(means) ** 2 / (1 / sizes[1:] + 1 / sizes[:-1])
        return bool(apart.mean() > CODES_DIFFER * within)

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
    numbers: Series | None = field(default_factory=Series)
    """The numbers in a column of texts; None once a text is none."""
    unreadable: bool = False

    def add(self, raw: Any, target: float = 0.0) -> None:
        """Take in the cell of one row, and its target as a number."""
        if isinstance(raw, list | tuple | dict | bytes | np.ndarray):
            self.unreadable = True
            return
        value = as_value(raw)
        self.plain.add(value, target)
        if isinstance(value, str) and self.numbers is not None:
            number = read_number(value)
            self.numbers = None if number is None else self.numbers
            if self.numbers is not None:
                self.numbers.add(number, target)
        for order in [*self.dates] if value is not None else ():
            parts = date_parts(value, order)
            if parts is None:
                del self.dates[order]
            for name, part in (parts or {}).items():
                self.dates[order].setdefault(name, Series()).add(part)


def as_value(raw: Any) -> Any:
    """Return a cell as text, number or None for a blank; NaN is a blank, a date stays as its text.

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
    """Return the parts of a date or time, year, month and day in that order; None for other values.

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
