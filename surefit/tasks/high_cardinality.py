"""Text columns of a table with many different values: ids, names, free text, long lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from surefit.config import set_option
from surefit.findings import Finding, rule
from surefit.tasks.column_series import MAX_TEXTS, Series

COLUMNS_LEFT_OUT = rule(
    "SF231",
    "info",
    "columns left out",
    why="They are not numbers, categories or dates, differ in nearly every row, or only number the "
    "rows.",
    fix="Nothing to do, unless a column should have been read.",
)

RARE_CATEGORIES = rule(
    "SF265",
    "info",
    "rare values of a text column count as unknown",
    why="Each value that is read is a dimension of its own. A column with many values would widen "
    "every row, and values of a few rows teach little.",
    fix="Read more of them with table.max_categories, or merge them into broader values.",
)

FREE_TEXT_WORDS = 4.0
"""Words per text, on average, from which on a column is free text."""
DIFFERS = 0.9
"""Share of the different values that occur once in a column of ids or names."""
RECURS = 10
"""Rows per different value, on average, in a column that is read although it has many."""


def why_not_categories(series: Series, most: int) -> str:
    """Why a text column is not read as categories; empty if it is.

    With more than `most` values, it is read if they recur: then the most frequent ones are.
    """
    distinct = len(series.values)
    if distinct <= most or (RECURS * distinct <= series.texts and distinct <= MAX_TEXTS):
        return ""
    if series.words >= FREE_TEXT_WORDS * series.texts:
        words = series.words / series.texts
        return f"is free text (about {words:.0f} words in a row), which tables do not read"
    once = sum(count == 1 for count in series.values.values())
    if once >= DIFFERS * distinct:
        return "is text that differs in nearly every row, as ids and names do"
    shown = f"more than {MAX_TEXTS:,}" if distinct > MAX_TEXTS else f"{distinct:,}"
    return f"is text with {shown} different values in {series.texts:,} training rows"


def describe_left_out(
    left_out: Mapping[str, str], columns: Mapping[str, Series]
) -> Iterator[Finding]:
    """The columns that are not used, each with its reason; free text and ids with what to set."""
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
    yield COLUMNS_LEFT_OUT.finding(f"Columns not used: {shown}.", fix=" ".join(fixes))


def describe_categories(
    parts: Sequence[Mapping[str, Any]], columns: Mapping[str, Series], most: int
) -> Iterator[Finding]:
    """Text columns of which only the most frequent values are read."""
    for part in parts:
        series = columns[part["column"]]
        distinct = len(series.values)
        if part["kind"] != "category" or "text" not in series.kinds or "order" in part:
            continue
        if distinct <= most:
            continue
        read = sum(series.values[value] for value in part["values"] if value is not None)
        yield RARE_CATEGORIES.finding(
            f"column {part['column']!r} has {distinct:,} different values; the {most} most "
            f"frequent ones ({read / max(series.texts, 1):.0%} of the rows) are read, the others "
            "count as unknown.",
            fix=f"To read all of them: {set_option('table.max_categories', distinct)}.",
            column=part["column"],
        )
