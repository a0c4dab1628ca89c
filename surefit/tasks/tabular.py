"""Rows of numbers, categories and dates as one vector; what is fitted comes from training rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.batches.field import Field
from surefit.data.column_types import is_number, is_text
from surefit.data.data_rules import MISSING_COLUMN, NOT_FINITE, WRONG_TYPE
from surefit.data.dates import ORDERS, read_date
from surefit.data.numbers import read_number
from surefit.data.table import Table
from surefit.encode.encoded_row import RowFaultError
from surefit.encode.encoder import Encoder
from surefit.findings import rule
from surefit.tasks.leakage import Sample, check_leakage

COLUMNS_LEFT_OUT = rule(
    "SF231",
    "info",
    "columns left out",
    why="They are not numbers, categories or dates, or only number the rows.",
    fix="Nothing to do, unless a column should have been read.",
)

NO_INPUT_COLUMN = rule(
    "SF233",
    "error",
    "no input column",
    why="Beside the target, rows need numbers, categories or dates that differ.",
    fix="Check columns.label and ignore, or give data with such columns.",
)


MAX_CATEGORIES = 50
"""Text with more different values than this is left out."""
MAX_STEPS = 32
"""Whole numbers with at most so many values are read as categories, too: hours, months, grades."""
MIN_ROWS_FOR_RARE = 50

FIELD = Field(("width",), "float32")


def has_columns(table: Table, roles: Mapping[str, str]) -> bool:
    """Whether there is a column of numbers, categories or dates besides the label."""
    return any(_is_readable(table, name) for name in table.columns if name != roles.get("label"))


def _is_readable(table: Table, column: str) -> bool:
    kind = table.column_type(column)
    if not is_text(kind):
        return is_number(kind) or bool(pa.types.is_temporal(kind))
    values = set(table.arrow[column].slice(0, 1000).drop_null().to_pylist())
    is_date = any(all(date_parts(value, order) for value in values) for order in ORDERS)
    return len(values) <= MAX_CATEGORIES or is_date


@dataclass
class _Series:
    """What is gathered of a column, or of a part of a date, in one pass and constant memory."""

    count: int = 0
    blanks: int = 0
    mean: float = 0.0
    squares: float = 0.0
    whole: bool = True
    rising: bool = True
    last: float = -math.inf
    first: float = math.nan
    values: Counter[Any] = field(default_factory=Counter)
    kinds: set[str] = field(default_factory=set)

    def add(self, value: Any) -> None:
        if value is None:
            self.blanks += 1
            return
        if len(self.values) <= MAX_CATEGORIES or value in self.values:
            self.values[value] += 1
        if isinstance(value, str):
            self.kinds.add("text")
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
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    @property
    def numbers_rows(self) -> bool:
        """Whether the values rise with the rows and lie close, as row numbers do."""
        close = self.count > 0.5 * (self.last - self.first + 1)
        return self.whole and self.rising and self.blanks == 0 and self.count >= 20 and close


@dataclass
class _Column:
    """One column: its own values, and their parts for each order in which all of them are dates."""

    plain: _Series = field(default_factory=_Series)
    dates: dict[str, dict[str, _Series]] = field(
        default_factory=lambda: {order: {} for order in ORDERS}
    )
    unreadable: bool = False

    def add(self, raw: Any) -> None:
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
                self.dates[order].setdefault(name, _Series()).add(part)


def as_value(raw: Any) -> Any:
    """A cell as text, number or None for a blank; NaN is a blank, a date stays as its text."""
    if isinstance(raw, str):
        return raw.strip() or None
    if isinstance(raw, date):  # a datetime is one, too
        return raw.isoformat()
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
    """
    at = read_date(value, order) if isinstance(value, str) else None
    if at is None:
        return None
    parts = {"year": at.year, "month": at.month, "day": at.day}
    return {**parts, "weekday": at.weekday(), "hour": at.hour}


@dataclass
class Gathered:
    """What the columns of the training rows hold, row by row."""

    encoder: Encoder
    columns: dict[str, _Column] = field(default_factory=dict)
    sample: Sample = field(default_factory=Sample)

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in one training row; its roles are in it beside the columns' own names."""
        label, roles = self.encoder.roles["label"], self.encoder.roles
        cells = {name: raw for name, raw in row.items() if name != label and name not in roles}
        for name, raw in cells.items():
            try:
                self.columns.setdefault(name, _Column()).add(raw)
            except RowFaultError as fault:
                raise RowFaultError(fault.rule, f"column {name!r}: {fault.message}", name) from None
        self.sample.add(cells, row["label"])

    def fitted(self) -> dict[str, Any]:
        """How each column becomes part of the vector, the vector's width, and what was found."""
        label = self.encoder.roles["label"]
        parts: list[dict[str, Any]] = []
        left_out: dict[str, str] = {}
        for name, column in self.columns.items():
            made, reason = _read_column(name, column)
            parts += made
            if reason:
                left_out[name] = reason
        shown = "; ".join(f"{name!r} {reason}" for name, reason in left_out.items())
        if not parts:
            raise NO_INPUT_COLUMN.error(
                f"Besides the target {label!r}, no column can be used: {shown or 'there is none'}."
            )
        found = [COLUMNS_LEFT_OUT.finding(f"Columns not used: {shown}.")] if left_out else []
        used = list(dict.fromkeys(part["column"] for part in parts))
        found += check_leakage(self.sample, used, label)
        return {"columns": parts, "width": sum(map(_width, parts)), "findings": found}


def _read_column(name: str, column: _Column) -> tuple[list[dict[str, Any]], str]:
    """The parts of the vector a column gives, or why it gives none."""
    plain = column.plain
    if column.unreadable or len(plain.kinds) > 1:
        return [], "holds lists, objects or mixed values"
    if not plain.kinds or (len(plain.values) == 1 and not plain.blanks):
        return [], "has the same value in all training rows"
    if column.dates:
        order, parts = next(iter(column.dates.items()))
        for series in parts.values():
            series.blanks = plain.blanks
        made = [p for part, series in parts.items() for p in _numbers(name, part, series)]
        made = [{**part, "order": order} for part in made]
        return made, "" if made else "has the same value in all training rows"
    if "text" in plain.kinds:
        if len(plain.values) > MAX_CATEGORIES:
            return [], f"is text with more than {MAX_CATEGORIES} different values"
        return [_category(name, None, plain)], ""
    if plain.numbers_rows:
        return [], "only numbers the rows"
    return _numbers(name, None, plain), ""


def _numbers(name: str, part: str | None, series: _Series) -> list[dict[str, Any]]:
    place = {"column": name, "part": part}
    if series.scale == 0 and not series.blanks:
        return []
    number = {
        **place,
        "kind": "number",
        "mean": series.mean,
        "scale": series.scale or 1.0,
        "blank": series.blanks > 0,
    }
    if series.whole and 2 < len(series.values) <= MAX_STEPS:
        return [number, _category(name, part, series)]
    return [number]


def _category(name: str, part: str | None, series: _Series) -> dict[str, Any]:
    """A value seen once in many rows counts as unknown, so that `unknown` is trained as well."""
    rare = 1 if sum(series.values.values()) >= MIN_ROWS_FOR_RARE else 0
    values = sorted(v for v, count in series.values.items() if count > rare) or [*series.values]
    known = [*values, None] if series.blanks else values
    return {"column": name, "part": part, "kind": "category", "values": known}


def _width(part: Mapping[str, Any]) -> int:
    return 1 + part["blank"] if part["kind"] == "number" else len(part["values"]) + 1


def columns_read(encoder: Encoder, columns: Sequence[str]) -> list[str]:
    """The columns that give a part of the vector; before they are fitted, all of them."""
    if "text" in encoder.roles or "features" in encoder.roles:
        return []
    if "columns" not in encoder.fitted:
        return list(columns)
    parts = {part["column"] for part in encoder.fitted["columns"]}
    return [name for name in columns if name in parts]


def encode_columns(row: Mapping[str, Any], encoder: Encoder) -> npt.NDArray[np.float32]:
    """The row as one vector: scaled numbers, blanks filled and flagged, a place per category."""
    vector: list[float] = []
    for part in encoder.fitted["columns"]:
        vector += _encode_part(row, part)
    return np.asarray(vector, np.float32)


def _encode_part(row: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[float]:
    name = part["column"]
    if name not in row:
        raise RowFaultError(MISSING_COLUMN, f"column {name!r} is missing", name)
    value = as_value(row[name])
    if part["part"] is not None and value is not None:
        parts = date_parts(value, part["order"])
        if parts is None:
            raise RowFaultError(WRONG_TYPE, f"{str(value)[:40]!r} is not a date", name)
        value = parts[part["part"]]
    if part["kind"] == "category":
        known: list[Any] = part["values"]
        value = _as_category(value, known)
        place = known.index(value) if value in known else len(known)
        yield from (float(place == i) for i in range(len(known) + 1))
        return
    number = read_number(value) if isinstance(value, str) else value
    if number is None and value is not None:
        raise RowFaultError(WRONG_TYPE, f"{value[:40]!r} is not a number", name)
    yield 0.0 if number is None else (number - part["mean"]) / part["scale"]
    if part["blank"]:
        yield float(number is None)


def _as_category(value: Any, known: list[Any]) -> Any:
    """The value in the type of the known ones: a column may be text in one file only."""
    if value is None or not known or isinstance(value, str) == isinstance(known[0], str):
        return value
    if not isinstance(value, str):
        return str(value)
    number = read_number(value)
    return value if number is None else number
