"""Rows of numbers, categories and dates as one vector; what is fitted comes from training rows."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.batches.field import Field
from surefit.config import set_option
from surefit.data.column_types import is_number, is_text
from surefit.data.data_rules import MISSING_COLUMN, WRONG_TYPE
from surefit.data.table import Table
from surefit.data.written_values import MISSING_MARKERS, ORDERS, is_missing, read_number
from surefit.findings import Finding, note, rule
from surefit.inputs.encoded_row import Encoding, RowFaultError, encoded
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import HASHED_WIDTH, FittedInput, TablePart
from surefit.inputs.row_input import ALONE, RowInput, is_blank
from surefit.inputs.table.table_columns import (
    MAX_VALUES,
    RECURS,
    Column,
    Series,
    as_value,
    date_parts,
)

NO_INPUT_COLUMN = rule(
    "SF233",
    "error",
    "no input column",
    why="Beside the target, rows need numbers, categories or dates that differ.",
    fix="Check columns.label and ignore, or give data with such columns.",
)


MAX_CATEGORIES = 50
"""Different values of a text column that are read, unless table.max_categories says otherwise."""
MAX_STEPS = 32
"""Whole numbers with at most so many values are read as categories, too: hours, months, grades."""
MIN_ROWS_FOR_RARE = 50

FIELD = Field(("width",), "float32")


def has_columns(table: Table, roles: Mapping[str, str]) -> bool:
    """Return whether there is a column of numbers, categories or dates besides the label."""
    return any(_is_readable(table, name) for name in table.columns if name != roles.get("label"))


def _is_readable(table: Table, column: str) -> bool:
    kind = table.column_type(column)
    if not is_text(kind):
        return is_number(kind) or bool(pa.types.is_temporal(kind))
    cells = table.arrow[column].slice(0, 1000).drop_null().to_pylist()
    values = {cell for cell in cells if not is_missing(cell, MISSING_MARKERS)}
    is_date = any(all(date_parts(value, order) for value in values) for order in ORDERS)
    return len(values) <= MAX_CATEGORIES or is_date


@dataclass
class Gathered:
    """What the columns of the training rows hold, row by row."""

    encoder: Encoder
    columns: dict[str, Column] = field(default_factory=dict)

    def watch(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield the rows, unchanged; those with a label are taken in.

        The roles of a row are in it beside the columns' own names.
        """
        label, roles = self.encoder.roles["label"], self.encoder.roles
        for row in rows:
            cells = {name: raw for name, raw in row.items() if name != label and name not in roles}
            if not is_blank(row.get("label")):
                target = _as_number(row["label"])
                for name, raw in cells.items():
                    try:
                        self.columns.setdefault(name, Column()).add(raw, target)
                    except RowFaultError as fault:
                        message = f"column {name!r}: {fault.message}"
                        raise RowFaultError(fault.rule, message, name) from None
            yield row

    def fitted(self) -> tuple[FittedInput, list[Finding]]:
        """Return how each column becomes part of the vector, and what was found."""
        label = self.encoder.roles["label"]
        parts: list[TablePart] = []
        left_out: dict[str, str] = {}
        most = self.encoder.settings.max_categories or MAX_CATEGORIES
        for name, column in self.columns.items():
            made, reason = _read_column(name, column, most)
            parts += made
            if reason:
                left_out[name] = reason
        if not parts:
            shown = "; ".join(f"{name!r} {reason}" for name, reason in left_out.items())
            raise NO_INPUT_COLUMN.error(
                f"Besides the target {label!r}, no column can be used: {shown or 'there is none'}."
            )
        texts = {name: column.plain for name, column in self.columns.items()}
        found = [*describe_left_out(left_out, texts), *describe_categories(parts, texts, most)]
        return replace(self.encoder.input, columns=tuple(parts)), found


def _as_number(target: Any) -> float:
    """Return a number for a target: itself, or one of its own for each class."""
    if isinstance(target, int | float):
        return float(target)
    return zlib.crc32(str(target).encode()) / 2**32


def _read_column(name: str, column: Column, most: int) -> tuple[list[TablePart], str]:
    """Return the parts of the vector a column gives, or why it gives none."""
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
        made = [replace(part, order=order) for part in made]
        return made, "" if made else "has the same value in all training rows"
    if "text" in plain.kinds and column.numbers is not None:  # numbers that are stored as text
        column.numbers.blanks, plain = plain.blanks, column.numbers
    if "text" in plain.kinds:
        reason = why_not_categories(plain, most)
        return ([], reason) if reason else ([_category(name, None, plain, most)], "")
    if plain.numbers_rows:
        return [], "only numbers the rows"
    return _numbers(name, None, plain), ""


def _numbers(name: str, part: str | None, series: Series) -> list[TablePart]:
    if series.scale == 0 and not series.blanks:
        return []
    scale, blank = series.scale or 1.0, series.blanks > 0
    number = TablePart(name, "number", part, mean=series.mean, scale=scale, blank=blank)
    distinct = len(series.values)
    if series.whole and 2 < distinct <= MAX_STEPS:
        return [number, _category(name, part, series, MAX_STEPS)]
    return [number, TablePart(name, "hashed")] if series.are_codes else [number]


def _category(name: str, part: str | None, series: Series, most: int) -> TablePart:
    """A value seen once in many rows counts as unknown, so that `unknown` is trained as well."""
    rare = 1 if sum(series.values.values()) >= MIN_ROWS_FOR_RARE else 0
    kept = [v for v, count in series.values.most_common(most) if count > rare]
    values = sorted(kept or [*series.values][:most])
    known = [*values, None] if series.blanks else values
    return TablePart(name, "category", part, values=tuple(known))


def columns_read(encoder: Encoder, columns: Sequence[str]) -> list[str]:
    """Return the columns that give a part of the vector; before they are fitted, all of them."""
    if not {*ALONE}.isdisjoint(encoder.roles):
        return []
    if encoder.input.columns is None:
        return list(columns)
    parts = {part.column for part in encoder.input.columns}
    return [name for name in columns if name in parts]


def encode_columns(
    row: Mapping[str, Any], encoder: Encoder, targets: Mapping[str, Any]
) -> Encoding:
    """Return row as one vector: scaled numbers, blanks filled and flagged, a place per category."""
    vector: list[float] = []
    for part in encoder.input.columns or ():
        vector += _encode_part(row, part)
    return encoded({"features": np.asarray(vector, np.float32), **targets})


def _encode_part(row: Mapping[str, Any], part: TablePart) -> Iterator[float]:
    name = part.column
    if name not in row:
        raise RowFaultError(MISSING_COLUMN, f"column {name!r} is missing", name)
    value = as_value(row[name])
    if part.part is not None and value is not None:
        parts = date_parts(value, part.order or "")
        if parts is None:
            raise RowFaultError(WRONG_TYPE, f"{str(value)[:40]!r} is not a date", name)
        value = parts[part.part]
    if part.kind == "category":
        known = part.values
        value = _as_category(value, known)
        place = known.index(value) if value in known else len(known)
        yield from (float(place == i) for i in range(len(known) + 1))
        return
    number = read_number(value) if isinstance(value, str) else value
    if number is None and value is not None:
        raise RowFaultError(WRONG_TYPE, f"{value[:40]!r} is not a number", name)
    if part.kind == "hashed":
        places = () if number is None else hashed_places(float(number))
        yield from (float(place in places) for place in range(HASHED_WIDTH))
        return
    yield 0.0 if number is None else (number - part.mean) / part.scale
    if part.blank:
        yield float(number is None)


def _as_category(value: Any, known: Sequence[Any]) -> Any:
    """Return the value in the type of the known ones: a column may be text in one file only."""
    if value is None or not known or isinstance(value, str) == isinstance(known[0], str):
        return value
    if not isinstance(value, str):
        return str(value)
    number = read_number(value)
    return value if number is None else number


FREE_TEXT_WORDS = 4.0
"""Words per text, on average, from which on a column is free text."""
DIFFERS = 0.9
"""Share of the different values that occur once in a column of ids or names."""


def hashed_places(number: float) -> tuple[int, ...]:
    """Return the places of a whole number, such as the id of a shop: several, so that numbers that
    share one place differ in another.

    >>> hashed_places(1017.0)
    (87, 73)
    """
    return tuple(zlib.crc32(f"{n} {number!r}".encode()) % HASHED_WIDTH for n in range(2))


def why_not_categories(series: Series, most: int) -> str:
    """Why a text column is not read as categories; empty if it is.

    With more than `most` values, it is read if they recur: then the most frequent ones are.
    """
    distinct = len(series.values)
    if distinct <= most or (RECURS * distinct <= series.texts and distinct <= MAX_VALUES):
        return ""
    if series.words >= FREE_TEXT_WORDS * series.texts:
        words = series.words / series.texts
        return f"is free text (about {words:.0f} words in a row), which tables do not read"
    once = sum(count == 1 for count in series.values.values())
    if once >= DIFFERS * distinct:
        return "is text that differs in nearly every row, as ids and names do"
    shown = f"more than {MAX_VALUES:,}" if distinct > MAX_VALUES else f"{distinct:,}"
    return f"is text with {shown} different values in {series.texts:,} training rows"


def describe_left_out(
    left_out: Mapping[str, str], columns: Mapping[str, Series]
) -> Iterator[Finding]:
    """Yield columns that are not used, each with its reason; free text and ids with what to set."""
    if not left_out:
        return
    shown = "; ".join(f"{name!r} {reason}" for name, reason in left_out.items())
    texts = [name for name, reason in left_out.items() if reason.startswith("is free text")]
    groups = [n for n, reason in left_out.items() if "different values in" in reason]
    fixes = []
    if texts:
        column = set_option("columns.text", texts[0])
        fixes.append(f"To learn from the text instead of the table, with a text model: {column}.")
    if groups:
        by = set_option("split.by", groups[0])
        fixes.append(f"If its values are groups that must stay in one set: {by}.")
    quiet = set_option("ignore", [*left_out])
    fixes.append(f"To leave them out without this remark: {quiet}.")
    yield note(f"Columns not used: {shown}.", fix=" ".join(fixes))


def describe_categories(
    parts: Sequence[TablePart], columns: Mapping[str, Series], most: int
) -> Iterator[Finding]:
    """Yield text columns of which only the most frequent values are read, and columns of codes."""
    for part in parts:
        series = columns[part.column]
        if part.kind == "hashed":
            message = (
                f"column {part.column!r}: its whole numbers are read as amounts and as codes: rows "
                "of neighbouring numbers have different targets."
            )
            yield note(message, column=part.column)
        distinct = len(series.values)
        if part.kind != "category" or "text" not in series.kinds or part.order is not None:
            continue
        if distinct <= most:
            continue
        read = sum(series.values[value] for value in part.values if value is not None)
        yield note(
            f"column {part.column!r} has {distinct:,} different values; the {most} most "
            f"frequent ones ({read / max(series.texts, 1):.0%} of the rows) are read, the others "
            "count as unknown.",
            fix=f"To read all of them: {set_option('table.max_categories', distinct)}.",
            column=part.column,
        )


TABLE = RowInput(
    None,
    encode_columns,
    lambda encoder: {"features": FIELD},
    reader=Gathered,
    takes=has_columns,
    is_small=lambda encoder: True,
)
