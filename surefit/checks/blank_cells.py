"""Blank cells in the columns of a table: how many, and what is made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from surefit.config import set_option
from surefit.data.column_types import is_text
from surefit.data.table import Table
from surefit.findings import Finding, rule

BLANKS = rule(
    "SF266",
    "info",
    "blank cells in a table",
    why="A blank is read as a value of its own, so that the model can learn what it means.",
    fix="Nothing to do. Leave a column out with ignore if too little of it is known.",
)

UNSEEN_BLANKS = rule(
    "SF267",
    "warning",
    "blank cells in a column that has none in the training rows",
    why="The model has never seen a blank there, so the prediction for such a row may be wrong.",
    fix="Fill the cells, or train on rows that have blanks, too.",
    accept="The blanks are read as the mean, or as an unknown category.",
)

SHOWN = 8


def check_blanks(tables: Sequence[Table], parts: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Blanks per column that is read; one remark per table, and a warning for unseen ones."""
    by_column: dict[str, Mapping[str, Any]] = {}
    for part in parts:  # of the parts of a column, the number says how blanks are read
        by_column.setdefault(part["column"], part)
    for table in tables:
        counts = {name: count_blanks(table, name) for name in by_column if name in table.columns}
        blank = {name: count for name, count in counts.items() if count}
        seen = {name: count for name, count in blank.items() if _is_seen(by_column[name])}
        if seen:
            yield _describe(table, seen, by_column)
        for name in blank.keys() - seen.keys():
            yield _warn(table, name, blank[name], by_column[name])


def count_blanks(table: Table, column: str) -> int:
    """How many cells of a column are empty, spaces or NaN.

    >>> from surefit.data.open_data import open_table
    >>> count_blanks(open_table([{"a": " "}, {"a": None}, {"a": "x"}]), "a")
    2
    """
    return sum(int(pc.sum(_blanks(chunk)).as_py() or 0) for chunk in table.arrow[column].chunks)


def _blanks(chunk: Any) -> Any:
    """Whether each cell of an array is blank."""
    if is_text(chunk.type):
        return pc.fill_null(pc.equal(pc.utf8_trim_whitespace(chunk), ""), True)
    return pc.is_null(chunk, nan_is_null=bool(pa.types.is_floating(chunk.type)))


def _first_blank(table: Table, column: str) -> int:
    start = 0
    for chunk in table.arrow[column].chunks:
        at = pc.index(_blanks(chunk), True).as_py()
        if at >= 0:
            return start + int(at)
        start += len(chunk)
    return 0


def _is_seen(part: Mapping[str, Any]) -> bool:
    """Whether the training rows have blanks in the column."""
    return bool(part["blank"]) if part["kind"] == "number" else None in part["values"]


def _describe(
    table: Table, counts: Mapping[str, int], parts: Mapping[str, Mapping[str, Any]]
) -> Finding:
    ways: dict[str, list[str]] = {}
    ordered = sorted(counts, key=lambda name: -counts[name])
    for name in ordered[:SHOWN]:
        kind = "date" if "order" in parts[name] else parts[name]["kind"]
        shown = f"{name!r} {counts[name]:,} ({counts[name] / table.num_rows:.1%})"
        ways.setdefault(WAYS[kind], []).append(shown)
    listed = "; ".join(f"{', '.join(names)}: {way}" for way, names in ways.items())
    more = f"; and {len(ordered) - SHOWN} further columns" if len(ordered) > SHOWN else ""
    where = table.where(_first_blank(table, ordered[0]))
    return BLANKS.finding(
        f"blanks in {table.num_rows:,} rows: {listed}{more}.", where, column=ordered[0]
    )


WAYS = {
    "number": "read as the mean of the training rows, with a flag for blanks",
    "date": "the parts of the date are read as their means, with a flag for blanks",
    "category": "blank is a category of its own",
}


def _warn(table: Table, column: str, count: int, part: Mapping[str, Any]) -> Finding:
    read = "an unknown category" if part["kind"] == "category" else "the mean, without a flag"
    where = table.where(_first_blank(table, column))
    return UNSEEN_BLANKS.finding(
        f"column {column!r} is blank in {count:,} of {table.num_rows:,} rows (first row "
        f"{where['row']}), and in no training row; these cells are read as {read}.",
        where,
        fix=f"Fill the cells, or leave the column out: {set_option('ignore', column)}.",
        column=column,
    )
