"""Missing values: which texts stand for them, and in which columns they do.

- In columns of numbers and of dates, every marker is a missing value.
- In columns of categories, every marker is but `none` and `nil`, which are common categories.
- In the column of the classes, a marker is a class if the other classes look like it: `NA` beside
  `EU` and `APAC`, or `-` beside `+`.
- Prompts and answers are missing where they are `nan` or `<NA>`, which pandas writes as text.
- Other texts stay as they are.

`read.missing` replaces the markers, and then they are missing values in the column of classes, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from surefit.config import Reading
from surefit.data.column_types import is_text
from surefit.data.table import Table
from surefit.data.written_values import MISSING_MARKERS, are_dates, read_number
from surefit.findings import Finding, note

VALUES = frozenset(("none", "nil"))
"""Markers that are common names of categories and classes."""
IN_TEXTS = ("nan", "<NA>")
"""What pandas writes for a missing text, as it is spelled."""
TEXT_ROLES = (*("prompt", "answer", "input", "system", "source", "target", "chosen", "rejected"),)
READ_WHOLE = ("text", "image", "audio", "features", "messages")
"""Roles of inputs beside which other columns are not read."""
LONGEST = 16
LOOKED_AT = 1000
SHOWN = 8


def markers_of(reading: Reading | None) -> frozenset[str]:
    """The markers in lower case: those of `read.missing`, else the usual ones."""
    if reading is None or reading.missing is None:
        return MISSING_MARKERS
    return frozenset(marker.strip().casefold() for marker in reading.missing)


def is_missing(value: Any, markers: Collection[str]) -> bool:
    """Whether a value is a marker, in any case.

    >>> [is_missing(value, MISSING_MARKERS) for value in (" n/a", "NaN", "Nadia", 0)]
    [True, True, False, False]
    """
    return isinstance(value, str) and len(value) <= LONGEST and value.strip().casefold() in markers


def describe_missing(
    columns: Mapping[str, Mapping[str, int]], what: str, file: str | None = None
) -> Iterator[Finding]:
    """One finding for each marker, from the markers of each column with their numbers of cells."""
    for marker in sorted({marker for found in columns.values() for marker in found}):
        counts = {name: found[marker] for name, found in columns.items() if marker in found}
        names = [f"{name!r} {count:,}" for name, count in counts.items()]
        shown = ", ".join(names[:SHOWN]) + f" and {len(names) - SHOWN} more" * (len(names) > SHOWN)
        column = f"{len(counts)} column{'s' * (len(counts) > 1)}"
        yield note(
            f"{marker!r} in {column} of {what} is read as missing: {shown}.",
            file=file,
            column=next(iter(counts)),
        )


def find_missing(
    table: Table, roles: Mapping[str, str], whole_rows: bool, reading: Reading
) -> tuple[dict[str, Any], list[Finding]]:
    """The markers of each column as settings of the Encoder, and what is found in the table."""
    markers, label = markers_of(reading), roles.get("label")
    by_column: dict[str, list[str]] = {}
    found: dict[str, Counter[str]] = {}
    takes_columns = whole_rows and roles.keys().isdisjoint(READ_WHOLE)
    read = [name for name in table.columns if takes_columns and name not in roles.values()]
    for name in (*read, *([label] if label in table.columns else [])):
        kind = table.column_type(name)
        if not is_text(kind):
            scalar = not pa.types.is_nested(kind)
            by_column |= {name: sorted(markers)} if scalar and whole_rows else {}
            continue
        others = _other_values(table, name, markers)
        is_measured = all(read_number(v) is not None for v in others) or are_dates(others)
        certain = reading.missing is not None or is_measured
        usable = markers if certain else markers - VALUES
        counts = _count_markers(table, name, usable)
        if name == label and not certain:
            is_class = len(others) < 2 or any(_is_class(text, others) for text in counts)
            counts = Counter() if is_class else counts
        by_column[name] = sorted(map(str.casefold, counts)) if name == label else sorted(usable)
        found[name] = counts
    texts = {roles[role] for role in TEXT_ROLES if role in roles} & {*table.columns}
    in_texts = [text for text in IN_TEXTS if text.casefold() in markers]
    found_texts = {
        name: counts
        for name in sorted(texts)
        if is_text(table.column_type(name))
        and (counts := _count_markers(table, name, frozenset(in_texts), exactly=True))
    }
    settings = {"missing": {name: known for name, known in by_column.items() if known}}
    settings["missing_texts"] = {name: [*counts] for name, counts in found_texts.items()}
    return settings, [
        *describe_missing({n: c for n, c in found.items() if c}, "text"),
        *describe_missing(found_texts, "prompts or answers"),
    ]


def _count_markers(
    table: Table, column: str, markers: Collection[str], exactly: bool = False
) -> Counter[str]:
    """How many cells each marker has, as it is written."""
    counts: Counter[str] = Counter()
    wanted = pa.array(sorted(markers), pa.string())
    for chunk in table.arrow[column].chunks:
        short = chunk.filter(pc.less_equal(pc.binary_length(chunk), LONGEST))
        cells = pc.utf8_trim_whitespace(short)
        texts = cells if exactly else pc.utf8_lower(cells)
        held = cells.filter(pc.is_in(texts.cast(pa.string()), value_set=wanted))
        counts.update(
            {each["values"]: each["counts"] for each in pc.value_counts(held).to_pylist()}
        )
    return counts


def _other_values(table: Table, column: str, markers: Collection[str]) -> list[str]:
    """Different values of a column that are neither blank nor a marker, from its first ones."""
    distinct: dict[str, None] = {}
    for chunk in table.arrow[column].chunks:
        for value in pc.unique(chunk).to_pylist():
            text = (value or "").strip()
            if text and not is_missing(text, markers):
                distinct[text] = None
        if len(distinct) >= LOOKED_AT:
            break
    return [*distinct][:LOOKED_AT]


def _is_class(marker: str, others: Iterable[str]) -> bool:
    """Whether most other classes look like the marker: signs, capitals, or codes of its length."""

    def form(text: str) -> tuple[bool, ...]:
        signs = not any(map(str.isalnum, text))
        return signs, text.isupper(), len(text) <= 5, text.isalpha() or signs

    alike = [
        form(other) == form(marker) and (marker.isupper() or len(other) == len(marker))
        for other in others
    ]
    return 2 * sum(alike) > len(alike)
