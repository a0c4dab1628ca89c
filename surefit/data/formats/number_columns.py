"""Which columns of a delimited file hold numbers, and which cells turn a column into text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from surefit.config import set_option
from surefit.data.roles import ROLES
from surefit.data.written_values import (
    INTEGER,
    NUMBER,
    describe_missing,
    is_almost_number,
    is_code,
    is_missing,
)
from surefit.findings import Finding, rule

NOT_ALL_NUMBERS = rule(
    "SF118",
    "warning",
    "a few cells that are not numbers",
    why=(
        "A column is read as numbers only if every cell is a number. A few other cells turn all of "
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

QUOTED = ("prompt", "answer")
"""Roles of texts that may be numbers."""

Cells = tuple[int, list[str]]
"""The number of a line, and its cells."""


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
    place: int
    pattern: re.Pattern[str] = INTEGER
    """What every number so far matches: integers, or all numbers."""
    num_blank: int = 0
    num_odd: int = 0
    """Cells that are neither blank nor numbers."""
    num_text: int = 0
    """Those of them that do not even resemble a number."""
    odd: dict[str, _Cell] = field(default_factory=dict)
    is_text: bool = False
    """Whether the column is certainly meant to be text."""
    markers: Collection[str] = ()
    missing: Counter[str] = field(default_factory=Counter)
    """Markers of missing values, as they are written."""
    has_numbers: bool = False

    @property
    def kind(self) -> type:
        """The narrowest type that every cell can be read as: int, float or str."""
        if self.is_text or self.num_odd or (self.missing and not self.has_numbers):
            return str
        return int if self.pattern is INTEGER else float

    def look_at(self, cell: str, row: int, line: int) -> None:
        """Count a cell that does not match the pattern."""
        cell = cell.strip()
        if not cell:
            self.num_blank += 1
        elif is_missing(cell, self.markers):
            self.num_blank += 1
            self.missing[cell] += 1
        elif self.pattern.fullmatch(cell):
            self.has_numbers = True  # only surrounding spaces kept it from matching
        elif NUMBER.fullmatch(cell):
            self.pattern, self.has_numbers = NUMBER, True
        else:
            self.pattern = NUMBER
            self._add_odd(cell, row, line)

    def _add_odd(self, cell: str, row: int, line: int) -> None:
        self.num_odd += 1
        self.num_text += not is_almost_number(cell)
        many = self.num_text > max(_GIVE_UP_CELLS, _GIVE_UP_SHARE * (row + 1 - self.num_blank))
        self.is_text = many or is_code(cell)
        if cell in self.odd:
            self.odd[cell].count += 1
        elif len(self.odd) < _KEPT_CELLS:
            self.odd[cell] = _Cell(1, row, line)

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
    headers: tuple[tuple[int, int], ...]
    """Row and line of each."""

    def findings(self, path: Path) -> Iterator[Finding]:
        """Yield the cells and header lines that turn columns of numbers into text."""
        spoiled = [column for column in self.columns if column.is_spoiled(self.num_rows)]
        if self.headers:
            yield self._repeated_header(path, [c for c in spoiled if _only_header(c, self)])
        for column in spoiled:
            if not _only_header(column, self):
                yield self._odd_cells(path, column)
        missing = {c.name: c.missing for c in self.columns if c.missing and c.kind is not str}
        yield from describe_missing(missing, "numbers", str(path))

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


def infer_columns(
    names: Sequence[str], rows: Iterable[Cells], markers: Collection[str] = ()
) -> Columns:
    """Return what each column holds. All cells are examined, unless a column is certainly text."""
    columns = tuple(Column(name, place, markers=markers) for place, name in enumerate(names))
    header = list(names) if len(names) > 1 else None
    headers: list[tuple[int, int]] = []
    open_columns, row = columns, -1
    for row, (line, cells) in enumerate(rows):
        if cells == header:
            headers.append((row, line))
        for column in open_columns:
            cell = cells[column.place]
            if not cell:
                column.num_blank += 1
            elif column.pattern.fullmatch(cell):
                column.has_numbers = True
            else:
                column.look_at(cell, row, line)
                if column.is_text:
                    open_columns = tuple(c for c in open_columns if not c.is_text)
    by_role = {role: [c for c in columns if c.name.lower() in ROLES[role].names] for role in QUOTED}
    if any(column.kind is str for column in by_role["prompt"]):
        for column in by_role["answer"]:  # NA is an answer, even where the others are numbers
            column.is_text = column.is_text or bool(column.missing)
    return Columns(columns, row + 1, tuple(headers))


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
