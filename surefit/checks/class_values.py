"""Classes as the rows have them: names that are alike or mean "no label", rare ones, shares."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surefit.config import set_option
from surefit.data.column_types import is_number, is_text
from surefit.data.row_arrays import blocks, new_array
from surefit.data.split import Rows
from surefit.data.table import Table
from surefit.data.written_values import MISSING_MARKERS, read_number
from surefit.findings import NOTE, Finding, note, rule
from surefit.inputs.encoder import Encoder
from surefit.targets.classes import likely_separator

ALIKE_CLASSES = rule(
    "SF234",
    "warning",
    "names that differ by case or spaces only",
    why="They are different classes or categories to the model, and their rows contradict each "
    "other.",
    fix="Write the name in one way in all rows.",
    accept="The names stay classes or categories of their own.",
)

MARKER_AS_LABEL = rule(
    "SF235",
    "warning",
    "a class or number that usually means no label",
    why="The model learns to predict the marker of a missing label or target as if it were one.",
    fix="Leave the label empty in these rows: rows without a label are dropped and counted.",
    accept="The value is trained as a class or target like any other.",
)

SINGLE_ROW_CLASS = rule(
    "SF237",
    "warning",
    "a class with one row",
    why=(
        "One row is too few to learn a class from or to validate it on; beside classes with many "
        "rows it is often a misspelt name."
    ),
    fix="Correct the label, add rows of the class, or delete the row.",
    accept="The class is trained on its single row.",
)

BLANK_LABELS = rule(
    "SF128",
    "warning",
    "blank labels beside texts with several classes",
    why=(
        "A blank cell may mean that no class applies, or that the label is missing. It counts as "
        "missing, and the row is dropped."
    ),
    fix="If blank means that no class applies: --set accept=[SF128]. Else add the labels.",
    accept="Rows with a blank label are trained as rows to which no class applies.",
)

UNSPLIT_CLASSES = rule(
    "SF129",
    "warning",
    "labels that look like several classes each",
    why=(
        "The same parts recur in several combinations around one sign. Each combination is "
        "trained as a class of its own."
    ),
    fix="Name the sign with label_separator; label_separator=none if each text is one class.",
    accept="Each text is one class.",
)

SHOWN = 3
MAX_NAMES = 10_000
MARKERS = (MISSING_MARKERS - {"none"}) | {
    *("n.a.", "??", "unknown", "unk", "missing", "unlabeled", "unlabelled", "no label"),
    *("not labeled", "not labelled", "not available", "undefined", "tbd", "todo"),
}
"""Texts that stand for a missing label. `none` and `other` are not among them: they are common
names of real classes."""
SENTINELS = frozenset((-1, -9, -99, -100, -999, -9999, 99, 255, 999, 9999, 65535, 2**31 - 1))
"""Numbers that stand for a missing label, if the other classes are numbered without them."""
RARE = 5
"""-1 beside 0 and 1 is a class unless it has so many times fewer rows than either of them."""
FREQUENT_ROWS, FREQUENT_SHARE = 20, 0.2
"""Names that differ in case are classes of their own, if each has so many rows, and this share of
the rows of the other."""
TYPICAL_ROWS = 8
"""A single row is odd where half of the classes have this many rows."""


def check_classes(encoder: Encoder, table: Table) -> Iterator[Finding]:
    """Yield what is odd about the names of the classes and their numbers of rows."""
    labels, column = encoder.target.classes, encoder.roles.get("label")
    if labels is None or column is None or column in table.files:  # classes are inside the files
        return
    names, sign = list(labels.names), labels.separator
    counts = dict(zip(names, labels.counts, strict=False))
    is_open = encoder.settings.labels.separator is None
    if sign is not None and is_open:
        said = f"labels with {sign!r} are several classes; there are {len(names)}."
        yield note(f"column {column!r}: {said}", column=column)
    if sign is not None:
        yield from _check_blanks(table, column)
    elif not labels.several and is_open:
        yield from _check_unsplit(names, column)
    written = {**({} if sign is not None else _written(table, column)), **counts}
    groups = _alike(written)
    yield from _report_alike(groups, written, table, column)
    unit = "labelled time step" if labels.by_step else "training row"
    yield from _check_markers(names, counts, table, column, unit)
    if counts and not labels.several:
        named = {name for group in groups for name in group}
        yield from _check_rare(counts, named, table, column, unit)


def _check_blanks(table: Table, column: str) -> Iterator[Finding]:
    """Blank cells, which a list would have as []."""
    blank = table.profile(column).blanks()
    if len(blank):
        message = (
            f"column {column!r}: {len(blank):,} of {table.num_rows:,} labels are blank, beside "
            "labels of several classes."
        )
        yield BLANK_LABELS.finding(message, table.where(int(blank[0])), column=column)


def _check_unsplit(names: Sequence[Any], column: str) -> Iterator[Finding]:
    """Labels of several classes around a sign that is common within names as well."""
    texts = [name for name in names if isinstance(name, str)]
    sign = likely_separator(texts) if len(texts) <= MAX_NAMES else None
    if sign is None:
        return
    shown = ", ".join(repr(name) for name in texts if sign in name)
    message = f"column {column!r}: the parts of labels such as {_cut(shown)} recur around {sign!r}."
    fix = (
        f"If a row may have several classes: {set_option('label_separator', sign)}. If each text "
        "is one class: --set label_separator=none."
    )
    yield UNSPLIT_CLASSES.finding(message, fix=fix, column=column)


def _cut(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[:most]} …"


def _written(table: Table, column: str) -> dict[Any, int]:
    """Names as all rows have them, those of the validation set too; none where there are lists."""
    if not is_text(table.column_type(column)):
        return {}
    written: Counter[str] = Counter()
    for name, count in (table.profile(column).counts or {}).items():
        written[name.strip()] += count
    return {name: count for name, count in written.items() if name and not name.startswith("[")}


def _alike(counts: Mapping[Any, int]) -> list[list[Any]]:
    """Groups of names that differ by case or spaces only, unless each of them is frequent."""
    alike: dict[str, list[Any]] = {}
    for name in counts:
        alike.setdefault(folded(name), []).append(name)
    return [
        group
        for group in alike.values()
        if len(group) > 1 and not _are_frequent([counts[name] for name in group])
    ]


def check_spelling(table: Table, column: str, encoder: Encoder) -> Iterator[Finding]:
    """Yield categories of a column that is read, alike but for case and spaces."""
    if any(part.column == column and part.order is None for part in encoder.input.columns or ()):
        written = table.profile(column).counts or {}
        yield from _report_alike(_alike(written), written, table, column)


def _are_frequent(counts: Sequence[int]) -> bool:
    """Return whether so many rows have each of the names that none of them is a slip."""
    return min(counts) >= FREQUENT_ROWS and min(counts) >= FREQUENT_SHARE * max(counts)


def _report_alike(
    groups: Sequence[list[Any]], counts: Mapping[Any, int], table: Table, column: str
) -> Iterator[Finding]:
    if not groups:
        return
    shown = "; ".join(
        ", ".join(f"{name!r} in {_number(counts[name], 'row')}" for name in group)
        for group in groups[:SHOWN]
    )
    rarest = min(groups[0], key=counts.__getitem__)
    message = (
        f"column {column!r}: {_number(len(groups), 'name is', 'names are')} written in several "
    )
    message += f"ways, alike but for case and spaces: {shown}{_rows(table, column, rarest)}."
    yield ALIKE_CLASSES.finding(message, _where(table, column, rarest), column=column)


def folded(name: Any) -> str:
    """Return a class name without case and spaces; single letters stay as they are.

    >>> folded("Not  Spam ") == folded("not_spam"), folded("A") == folded("a")
    (True, False)
    """
    text = unicodedata.normalize("NFKC", str(name)).strip()
    if len(text) == 1:  # letters as classes
        return text
    return "".join(text.casefold().replace("_", " ").split())


def _check_markers(
    names: Sequence[Any], counts: Mapping[Any, int], table: Table, column: str, unit: str
) -> Iterator[Finding]:
    numbers = _as_numbers(names)
    found = [name for name in names if isinstance(name, str) and name.casefold() in MARKERS]
    if any(len(name) == 2 for name in found) and _are_codes(names):
        found = []  # NA among codes of countries
    if numbers is not None:
        marker = find_sentinel({n: counts.get(name, 0) for n, name in numbers.items()})
        found = [numbers[marker]] if marker is not None else []
    if found and len(names) - len(found) >= 2:
        rows = sum(counts.get(name, 0) for name in found)
        shown = ", ".join(repr(name) for name in found[:SHOWN])
        are = "is read as a class" if len(found) == 1 else "are read as classes"
        message = f"column {column!r}: {shown} {are} with {_number(rows, unit)}"
        message += f"{_rows(table, column, found[0], len(found) > 1)}."
        yield MARKER_AS_LABEL.finding(message, _where(table, column, found[0]), column=column)


def _as_numbers(names: Sequence[Any]) -> dict[int, Any] | None:
    """Return the classes by number, if all of them are whole numbers."""
    read = {}
    for name in names:
        number = read_number(name) if isinstance(name, str) else name
        if not isinstance(number, int | float) or not float(number).is_integer():
            return None
        read[int(number)] = name
    return read


def find_sentinel(counts: Mapping[int, int]) -> int | None:
    """Return the class number that stands for a missing label, if one does.

    >>> find_sentinel({0: 40, 1: 50, 2: 30, -1: 9}), find_sentinel({0: 40, 1: 50, 255: 9})
    (-1, 255)
    >>> find_sentinel({-1: 40, 1: 50}), find_sentinel({-1: 40, 0: 30, 1: 50})
    (None, None)
    """
    for marker in (min(counts), max(counts)):
        others = sorted(number for number in counts if number != marker)
        if marker not in SENTINELS or len(others) < 2 or others[0] < 0:
            continue
        compact = others[-1] - others[0] < 2 * len(others)
        far = marker < 0 or marker - others[-1] > max(len(others), 3)
        fewer = all(counts[marker] * RARE <= counts[number] for number in others)
        if compact and far and (marker != -1 or others != [0, 1] or fewer):
            return marker
    return None


def _are_codes(names: Sequence[Any]) -> bool:
    short = [name for name in names if isinstance(name, str) and len(name) == 2 and name.isalpha()]
    return len(names) > 2 and len(short) > 0.8 * len(names)


def _check_rare(
    counts: Mapping[Any, int],
    named: Collection[Any],
    table: Table,
    column: str,
    unit: str = "training row",
) -> Iterator[Finding]:
    """Classes with one target, but for those that another finding has named."""
    single = [name for name, count in counts.items() if count == 1 and name not in named]
    if not single:
        return
    few = len(single) <= max(1, 0.2 * len(counts))
    odd = few and float(np.median(list(counts.values()))) >= TYPICAL_ROWS
    shown = ", ".join(repr(name) for name in single[:SHOWN]) + (" …" if len(single) > SHOWN else "")
    message = (
        f"column {column!r}: {_number(len(single), 'class has', 'classes have')} one {unit} "
        f"(of {sum(counts.values()):,} {unit.split()[-1]}s in {len(counts)} classes): {shown}"
        f"{_rows(table, column, single[0], len(single) > 1)}."
    )
    broken = SINGLE_ROW_CLASS if odd else NOTE
    yield broken.finding(message, _where(table, column, single[0]), column=column)


def _number(count: int, one: str, several: str = "") -> str:
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def _rows(table: Table, column: str, name: Any, is_named: bool = True) -> str:
    rows = [table.where(row) for row in table.profile(column).rows_with(name, SHOWN)]
    if not rows:
        return ""
    shown = f"row{'s' * (len(rows) > 1)} {', '.join(str(r['row']) for r in rows)}"
    return f" ({name!r} in {shown})" if is_named else f" ({shown})"


def _where(table: Table, column: str, name: Any) -> dict[str, str | int]:
    rows = table.profile(column).rows_with(name, 1)
    return table.where(rows[0]) if rows else {}


MAX_CLASSES = 100


@dataclass(frozen=True)
class Classes:
    """The class of each of some rows as a number, and the names of all classes."""

    numbers: Rows
    names: list[Any]


def read_classes(table: Table, rows: Rows, column: str) -> Classes | None:
    """Return the classes in a column with one label per row; None if there are many."""
    kind = table.column_type(column)
    if not (is_text(kind) or is_number(kind)):
        return None
    if pc.count_distinct(table.arrow[column], mode="all").as_py() > MAX_CLASSES:
        return None
    encoded = table.arrow[column].dictionary_encode("encode").combine_chunks()
    names = encoded.dictionary.to_pylist()
    order = sorted(range(len(names)), key=lambda at: repr(names[at]))
    numbers = new_array(len(rows), np.int16)
    for part in blocks(len(rows)):
        numbers[part] = np.argsort(order)[np.asarray(encoded.indices.take(pa.array(rows[part])))]
    return Classes(numbers, [names[at] for at in order])
