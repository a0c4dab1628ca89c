"""Which columns of a delimited file hold numbers, and which cells turn a column into text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surefit.config import set_option
from surefit.data.roles import ROLES
from surefit.data.written_values import (
    DECIMALS,
    INTEGER,
    NUMBER,
    as_plain_numbers,
    describe_missing,
    is_almost_number,
    is_code,
    notation,
)
from surefit.findings import Finding, rule

NOT_ALL_NUMBERS = rule(
    "SF118",
    "warning",
    "cells that are not plain numbers",
    why=(
        "A column is read as numbers only if every cell is a plain number. Other cells turn all of "
        "it into text: a target is refused, an input becomes categories or is left out."
    ),
    fix=(
        "Write the named cells as plain numbers such as 1234.5, or leave them empty for a "
        "missing value."
    ),
    accept="The column is read as text.",
)

HEADER_REPEATED = rule(
    "SF119",
    "warning",
    "header line repeated",
    why="A header line between the rows is read as a row and turns columns of numbers into text.",
    fix="Delete the named line.",
    accept="The line is read as a row.",
)

MAX_TEXT_SHARE = 0.05
"""A column with a larger share of cells that do not resemble numbers is meant to be text."""
MAX_MARKERS = 2
"""So many different texts among numbers stand for something, such as a missing value."""
MIN_NUMBERS = 4
SHOWN_CELLS = 3
SHOWN_COLUMNS = 8
_GIVE_UP_SHARE = 0.25
_GIVE_UP_CELLS = 20
_KEPT_CELLS = 50
_FIT_SHARE = 0.95

QUOTED = ("prompt", "answer")
"""Roles of texts that may be numbers."""
Place = tuple[int, int]
"""A row, and its line."""


@dataclass
class _Cell:
    """A cell that is not a number: how often it occurs, and where it occurs first."""

    count: int
    row: int
    line: int


@dataclass
class Column:
    """What was seen of the cells of one column."""

    name: str
    markers: pa.Array
    """How blank cells and missing values are written, in lower case."""
    decimal: str | None = None
    """The decimal mark of `read.decimal`."""
    has_numbers: bool = False
    has_fractions: bool = False
    num_blank: int = 0
    num_odd: int = 0
    """Cells that are neither blank nor numbers."""
    num_text: int = 0
    """Those of them that do not even resemble a number."""
    odd: dict[str, _Cell] = field(default_factory=dict)
    is_text: bool = False
    """Whether the column is certainly meant to be text."""
    missing: Counter[str] = field(default_factory=Counter)
    """Markers of missing values, as they are written."""

    @property
    def kind(self) -> pa.DataType:
        """The narrowest type that every cell can be read as."""
        if self.is_text or self.num_odd or (self.missing and not self.has_numbers):
            return pa.string()
        if not self.has_numbers:
            return pa.null()
        return pa.float64() if self.has_fractions else pa.int64()

    def look_at(self, cells: pa.Array, lines: pa.Array, first: int) -> None:
        """Count the cells of the next rows, which begin with the row `first`."""
        cells = self._plain(cells)
        is_missing = np.asarray(pc.is_in(pc.utf8_lower(cells), self.markers))
        is_number = np.asarray(_matches(cells, NUMBER)) & ~is_missing
        is_whole = np.asarray(_matches(cells, INTEGER))
        self.has_numbers |= bool(is_number.any())
        self.has_fractions |= bool((is_number & ~is_whole).any())
        if is_missing.any():
            self.num_blank += int(is_missing.sum())
            self.missing.update(filter(None, cells.filter(is_missing).to_pylist()))
        for place in np.flatnonzero(~is_number & ~is_missing).tolist():
            self._add_odd(cells[place].as_py(), first + place, lines[place].as_py())
            if self.is_text:
                return

    def read(self, cells: pa.Array) -> pa.Array:
        """Return cells in the type of the column; blank ones are missing."""
        none = pa.scalar(None, pa.string())
        if self.kind == pa.null():
            return pa.nulls(len(cells))
        if self.kind == pa.string():
            return pc.if_else(pc.equal(cells, ""), none, cells)
        cells = self._plain(cells)
        is_missing = pc.is_in(pc.utf8_lower(cells), self.markers)
        return pc.utf8_ltrim(pc.if_else(is_missing, none, cells), "+").cast(self.kind)

    def _plain(self, cells: pa.Array) -> pa.Array:
        cells = pc.utf8_trim_whitespace(cells)
        return as_plain_numbers(cells, self.decimal) if self.decimal else cells

    def _add_odd(self, cell: str, row: int, line: int) -> None:
        self.num_odd += 1
        self.num_text += not is_almost_number(cell)
        many = self.num_text > max(_GIVE_UP_CELLS, _GIVE_UP_SHARE * (row + 1 - self.num_blank))
        self.is_text = many or is_code(cell)
        if cell in self.odd:
            self.odd[cell].count += 1
        elif len(self.odd) < _KEPT_CELLS:
            self.odd[cell] = _Cell(1, row, line)

    @property
    def decimals(self) -> set[str]:
        """The decimal marks with which nearly all cells are numbers; none if they are already."""
        if self.is_text or self.num_text > MAX_TEXT_SHARE * self.num_odd:
            return set()
        fit = {mark: [re.fullmatch(notation(mark), c) for c in self.odd] for mark in DECIMALS}
        return {m for m, cells in fit.items() if sum(map(bool, cells)) > len(cells) * _FIT_SHARE}

    def is_spoiled(self, num_rows: int) -> bool:
        """Return whether a few cells turn a column of numbers into text."""
        if self.is_text or not self.num_odd:
            return False
        num_filled = num_rows - self.num_blank
        num_numbers = num_filled - self.num_odd
        same = len(self.odd) <= MAX_MARKERS  # a sign for a missing value, however often
        few = same or self.num_text <= max(1, MAX_TEXT_SHARE * num_filled)
        return few and num_numbers >= max(MIN_NUMBERS, self.num_odd)


@dataclass(frozen=True)
class Columns:
    """The columns of a file, and the rows that repeat its header line."""

    columns: tuple[Column, ...]
    num_rows: int
    headers: tuple[Place, ...]

    def findings(self, path: Path) -> Iterator[Finding]:
        """Yield the cells and header lines that turn columns of numbers into text."""
        spoiled = [column for column in self.columns if column.is_spoiled(self.num_rows)]
        if self.headers:
            yield self._repeated_header(path, [c for c in spoiled if _only_header(c, self)])
        for column in spoiled:
            if not _only_header(column, self):
                yield self._odd_cells(path, column)
        yield from self._other_notation(path, [c for c in self.columns if c not in spoiled])
        missing = {c.name: c.missing for c in self.columns if c.missing and c.kind != pa.string()}
        yield from describe_missing(missing, "numbers", str(path))

    def _other_notation(self, path: Path, columns: Sequence[Column]) -> Iterator[Finding]:
        """Yield columns that would be numbers with another decimal mark, the same for the file."""
        written = {c.name: (c, c.decimals) for c in columns if c.num_odd >= MIN_NUMBERS}
        certain = Counter(
            mark for _, marks in written.values() if len(marks) == 1 for mark in marks
        )
        usual = certain.most_common(1)[0][0] if certain else "point"
        for name, (column, marks) in written.items():
            if not marks:
                continue
            mark = usual if usual in marks else min(marks)
            cell = next(text for text in column.odd if re.fullmatch(notation(mark), text))
            first = column.odd[cell]
            plain = as_plain_numbers(pa.array([cell]), mark)[0].as_py()
            yield NOT_ALL_NUMBERS.finding(
                f"{path.name}: column {name!r} is read as text: its numbers are written as "
                f"{cell!r} (row {first.row}, line {first.line}).",
                fix=f"To read them as numbers ({plain}): {set_option('read.decimal', mark)}.",
                file=str(path),
                row=first.row,
                line=first.line,
                column=name,
            )

    def _repeated_header(self, path: Path, columns: Sequence[Column]) -> Finding:
        row, line = self.headers[0]
        more = len(self.headers) - 1
        others = f" (and {more} more line{'s' if more > 1 else ''} like it)" if more else ""
        message = f"{path.name}: line {line} (row {row}) repeats the header{others}."
        if columns:
            names = ", ".join(repr(column.name) for column in columns[:SHOWN_COLUMNS])
            names += ", …" if len(columns) > SHOWN_COLUMNS else ""
            message += f" It turns columns of numbers into text: {names}."
        return HEADER_REPEATED.finding(message, file=str(path), row=row, line=line)

    def _odd_cells(self, path: Path, column: Column) -> Finding:
        filled, odd = self.num_rows - column.num_blank, column.num_odd
        verb = "is not a number" if odd == 1 else "are not numbers"
        shown = []
        for text, cell in [*column.odd.items()][:SHOWN_CELLS]:
            often = f"{cell.count} times, first " if cell.count > 1 else ""
            shown.append(f"{text[:40]!r} {often}in row {cell.row} (line {cell.line})")
        if len(column.odd) > SHOWN_CELLS:
            shown.append("…")
        first = next(iter(column.odd.values()))
        message = (
            f"{path.name}: column {column.name!r} is read as text, because {odd} of its {filled} "
            f"cells {verb}: {', '.join(shown)}."
        )
        fix = ""
        if len(column.odd) <= MAX_MARKERS and odd > 1:
            option = set_option("read.missing", [*column.odd])
            fix = f"{NOT_ALL_NUMBERS.fix} If these cells are missing values: {option}."
        return NOT_ALL_NUMBERS.finding(
            message, fix=fix, file=str(path), row=first.row, line=first.line, column=column.name
        )


def _only_header(column: Column, columns: Columns) -> bool:
    return bool(columns.headers) and [*column.odd] == [column.name.strip()]


def _matches(cells: pa.Array, pattern: re.Pattern[str]) -> pa.Array:
    return pc.match_substring_regex(cells, f"^({pattern.pattern})$")


def infer_columns(
    names: Sequence[str],
    rows: pa.Table,
    headers: Sequence[Place],
    markers: Collection[str],
    decimal: str | None = None,
) -> Columns:
    """Return what each column holds; `rows` have their cells as text, and last their line.

    All cells are examined, unless a column is certainly text; `headers` are rows like the header.
    """
    blanks, row = pa.array(["", *markers], pa.string()), 0
    quoted = {name for role in QUOTED for name in ROLES[role].names}  # texts, whatever they hold
    columns = tuple(
        Column(name, blanks, None if name.lower() in quoted else decimal) for name in names
    )
    for batch in rows.to_batches():
        for column, cells in zip(columns, batch.columns, strict=False):
            if not column.is_text:
                column.look_at(cells, batch["line"], row)
        row += len(batch)
    by_role = {role: [c for c in columns if c.name.lower() in ROLES[role].names] for role in QUOTED}
    if any(column.kind == pa.string() for column in by_role["prompt"]):
        for column in by_role["answer"]:  # NA is an answer, even where the others are numbers
            column.is_text = column.is_text or bool(column.missing)
    return Columns(columns, row, tuple(headers))


def without_text_columns(
    findings: Iterable[Finding], roles: Mapping[str, str], whole_rows: bool
) -> list[Finding]:
    """Return the findings without those about columns that are used as text, or not used at all.

    Numbers are read from the label, from roles that a task brings itself and, in tabular rows, from
    the columns without a role.
    """
    role_of = {column: role for role, column in roles.items()}

    def matters(found: Finding) -> bool:
        role = role_of.get(str(found.where.get("column")))
        return whole_rows if role is None else role == "label" or role not in ROLES

    return [found for found in findings if found.code != NOT_ALL_NUMBERS.code or matters(found)]


def text_by_few_cells(findings: Iterable[Finding]) -> Finding | None:
    """Return the first finding that explains why a column of numbers is text."""
    codes = (NOT_ALL_NUMBERS.code, HEADER_REPEATED.code)
    return next((found for found in findings if found.code in codes), None)
