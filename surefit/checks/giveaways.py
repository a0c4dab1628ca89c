"""One thing that gives the target away: a column of a table, or a fact about how a row was made.

A model reads such a thing instead of what the row is about. A column must decide the target of all
rows looked at, or nearly determine its rank. Facts (length, size, letter case, the first word, a
corner) are those that the making of a row leaves behind, so that a loud or bright thing is none: a
fact must part a class from all others, but for a few rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.config import joint_parts, set_option
from surefit.data.column_types import is_text
from surefit.data.column_values import has_words
from surefit.data.split import Rows, sample_rows
from surefit.data.split_columns import NAMED_FOR_GROUPS
from surefit.data.table import Table
from surefit.findings import Finding, rule
from surefit.inputs.encoder import Encoder
from surefit.inputs.row_facts import Sample
from surefit.inputs.row_input import is_blank

TARGET_LEAKAGE = rule(
    "SF232",
    "warning",
    "columns that give the target away",
    why="The model would read the answer off them, and fail where they are not known yet.",
    fix="Leave the columns out (--set ignore=COLUMN), unless they are known before the target is.",
    accept="The columns are used as inputs.",
)

DECIDED_BY_FORM = rule(
    "SF229",
    "warning",
    "the class follows from the form of the row",
    why="The model would learn the form (length, size, letter case, a word at one place) and fail "
    "on rows that are made alike for all classes. Most often the classes come from different "
    "sources, or were cleaned differently.",
    fix="Make the rows of all classes alike in this, or get other rows.",
    accept="The rows are trained on as they are.",
)

Array = npt.NDArray[Any]
MOST_ROWS, MOST_COLUMNS, MOST_CLASSES = 4096, 256, 100
FEWEST_TARGETS, FEWEST_ROWS, FEWEST_OF_CLASS = 20, 100, 12
NEARLY_ONE, SAME_RANK = 0.999, 0.998
"""Correlation of a column with the target from which it gives it away, and of their ranks."""
FEWEST_PER_VALUE = 3
"""Rows per value of a column with many values, on average, before it is said to decide."""
FEWEST_OF_RANGE = 5
"""Rows that each class must have before a range of values is said to decide it."""
PURE = 0.985
"""The mean of the shares of rows on the right side of a fact, in the class and in all others."""
MOST_FORM_CLASSES = 40
FEWEST_WORDS = 5
SHOWN, SUMMED = 3, 5
FORMS = (
    *("length", "width", "height", "sampling rate", "seconds", "constant end", "clipped share"),
    *("capital letters", "characters", "spaces at the ends"),
)
"""Facts that decide a class only by how rows were made."""


def check_columns(table: Table, rows: Rows, encoder: Encoder) -> Iterator[Finding]:
    """Yield the columns of a table that the target can be read off, on a keyed sample."""
    label = encoder.roles["label"]
    used = dict.fromkeys(part.column for part in encoder.input.columns or ())
    some = np.sort(rows[sample_rows(len(rows), MOST_ROWS, 0)])
    read = [encoder.read(row) for row in table.rows(some.tolist())]
    known = [row for row in read if not is_blank(row.get("label"))]
    targets = [row["label"] for row in known]
    cells = {name: [row.get(name) for row in known] for name in [*used][:MOST_COLUMNS]}
    if targets and all(isinstance(target, list | np.ndarray) for target in targets):
        names = joint_parts(label) or [f"{label}[{at}]" for at in range(len(targets[0]))]
        for name, each in zip(names, zip(*targets, strict=True), strict=True):
            yield from find_columns(cells, each, name)
        sums = [sum(target) for target in targets]
        if len(names) > 1 and all(map(_is_number, sums)):
            yield from _of_numbers(cells, np.asarray(sums, np.float64), " + ".join(names[:SUMMED]))
    else:
        yield from find_columns(cells, targets, label)


def find_columns(
    cells: Mapping[str, list[Any]], targets: Sequence[Any], label: str
) -> Iterator[Finding]:
    """Yield a finding for each column, or pair of columns, that decides the target."""
    if len(targets) < FEWEST_TARGETS:
        return
    named = set()
    if all(map(_is_number, targets)):
        for found in _of_numbers(cells, np.asarray(targets, np.float64), label):
            named.add(found.where["column"])
            yield found
    classes = [str(target) for target in targets]
    for name, values in cells.items() if 1 < len({*classes}) <= MOST_CLASSES else ():
        found_code = _code(values, classes) if name not in named else ""
        if name not in named and not found_code and all(map(_is_number, values)):
            found_code = _ranges(np.asarray(values, np.float64), np.asarray(classes))
        if found_code:
            message = f"column {name!r} decides {label!r} in all {len(classes)} rows looked at"
            yield _leak(f"{message}: {found_code}.", name)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) and bool(np.isfinite(value))


def _of_numbers(cells: Mapping[str, list[Any]], target: Array, label: str) -> Iterator[Finding]:
    """Yield columns that a number follows from: by a line, by rank, or as a sum of two."""
    numeric = {k: v for k, v in cells.items() if all(map(_is_number, v))}
    names = [name for name, values in numeric.items() if len(set(values)) > 1]
    if not names or target.std() == 0:
        return
    matrix = np.asarray([numeric[name] for name in names], np.float64)  # (C, N)
    ranked = _ranks(target)
    for name, values in zip(names, matrix, strict=True):
        alike = float(np.corrcoef(values, target)[0, 1])
        by_rank = float(np.corrcoef(_ranks(values), ranked)[0, 1])
        if abs(alike) > NEARLY_ONE:
            message = f"column {name!r} and the target {label!r} have the correlation {alike:.4f}."
            yield _leak(message, name)
        elif abs(by_rank) > SAME_RANK and len(np.unique(target)) > FEWEST_TARGETS:
            message = (
                f"column {name!r} and the target {label!r} have the same order: the correlation of "
                f"their ranks is {by_rank:.4f}, as if one was made from the other."
            )
            yield _leak(message, name)
    close = 1e-6 * max(1.0, float(np.abs(target).max()))
    for place, values in enumerate(matrix):
        sums = (np.abs(matrix[place + 1 :] + values - target) <= close).all(1)
        for other in np.flatnonzero(sums):
            pair = names[place], names[place + 1 + int(other)]
            message = f"columns {pair[0]!r} and {pair[1]!r} add up to the target {label!r}."
            yield _leak(message, *pair)


def _ranks(values: Array) -> Array:
    """Return the rank of each value; equal ones share the mean of theirs."""
    _, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[at]


def _leak(message: str, *columns: str) -> Finding:
    one = len(columns) == 1
    groups = one and has_words(columns[0], NAMED_FOR_GROUPS)
    by = set_option("split.by", columns[0])
    fix = (
        f"If its values are groups of rows, keep each in one set: {by}; it is then no input. Or "
        "leave it out"
        if groups
        else f"Leave {'it' if one else 'them'} out"
    )
    fix += (
        f": {set_option('ignore', [*columns])}, unless "
        f"{'it is' if one else 'they are'} known before the target is."
    )
    return TARGET_LEAKAGE.finding(message, fix=fix, column=columns[0])


def _code(values: list[Any], targets: list[str]) -> str:
    """Return what is said of a column whose every value comes with one class only; else nothing.

    Values must recur, so that this is not by chance.
    """
    keys = [str(value) for value in values]
    pairs = dict(zip(keys, targets, strict=True))
    is_pure = all(pairs[key] == target for key, target in zip(keys, targets, strict=True))
    few = len(pairs) <= min(max(2 * len({*targets}), 10), len(values) // 2)
    recurring = FEWEST_PER_VALUE * len(pairs) <= len(values)
    recurring &= min(Counter(targets).values()) >= FEWEST_OF_RANGE
    if not is_pure or len(pairs) < 2 or not (few or recurring):
        return ""
    shown = ", ".join(f"{key!r} is {target!r}" for key, target in list(pairs.items())[:SHOWN])
    return f"each of its {len(pairs)} values has one class ({shown})"


def _ranges(values: Array, targets: Array) -> str:
    """What is said of a column in whose order each class is one range of values; else nothing."""
    order = np.argsort(values, kind="stable")
    numbers, classes = values[order], targets[order]
    cuts = np.flatnonzero(classes[1:] != classes[:-1])
    sizes = np.unique(targets, return_counts=True)[1]
    apart = bool((numbers[cuts] < numbers[cuts + 1]).all())
    if not apart or len(cuts) != len(sizes) - 1 or sizes.min() < FEWEST_OF_RANGE:
        return ""
    at = int(cuts[0])
    return (
        f"values up to {numbers[at]:g} are {str(classes[at])!r}, values from "
        f"{numbers[at + 1]:g} on {str(classes[at + 1])!r}"
    )


def text_forms(texts: Sequence[str]) -> tuple[dict[str, Array], dict[str, list[str]]]:
    """Return how texts are written: numbers, and words at their ends."""
    letters = [sum(map(str.isalpha, text)) for text in texts]
    capital = [sum(map(str.isupper, text)) for text in texts]
    numbers = {
        "characters": np.array([len(text) for text in texts], float),
        "capital letters": np.array([c / max(n, 1) for c, n in zip(capital, letters, strict=True)]),
        "spaces at the ends": np.array([len(t) - len(t.strip()) for t in texts], float),
    }
    words = [text.split() or [""] for text in texts]
    if np.median([len(each) for each in words]) < FEWEST_WORDS:
        return numbers, {}  # the word is what the text is about
    names = {
        "first word": [each[0] for each in words],
        "first two words": [" ".join(each[:2]) for each in words],
        "last word": [each[-1] for each in words],
        "last character": [text.rstrip()[-1:] for text in texts],
    }
    return numbers, names


def check_forms(sample: Sample, encoder: Encoder, classes: Sequence[Any]) -> Iterator[Finding]:
    """Yield facts about the form of rows that decide a class."""
    labels = sample.labels
    if labels is None or not 2 <= len(classes) <= MOST_FORM_CLASSES or len(labels) < FEWEST_ROWS:
        return
    numbers: dict[str, Array] = {n: v for n, v in sample.facts.items() if is_form(n)}
    names: Mapping[str, list[str]] = {}
    column = encoder.roles.get("text", "")
    if column in sample.table.columns and is_text(sample.table.column_type(column)):
        texts = [str(row[column] or "") for row in sample.table.rows(sample.rows.tolist())]
        made, names = text_forms(texts)
        numbers |= made
    where = sample.where(sample.rows[0])
    for name, values in numbers.items():
        if found := _parted(values, labels, classes):
            yield DECIDED_BY_FORM.finding(f"the {name} decides the class: {found}.", where)
    for name, found_values in names.items():
        if found := _named(found_values, labels, classes):
            yield DECIDED_BY_FORM.finding(f"the {name} decides the class: {found}.", where)
            return


def is_form(name: str) -> bool:
    """Return whether a fact tells how a row was made, rather than what it is of."""
    return name in FORMS or name.endswith("corner")


def _parted(values: Array, labels: Array, classes: Sequence[Any]) -> str:
    """Return what is said of a number that parts one class from all others; else nothing."""
    known = np.isfinite(values)
    values, labels = values[known], labels[known]
    if len(values) < FEWEST_ROWS or np.ptp(values) == 0:
        return ""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    ends = np.flatnonzero(np.diff(ranked) > 0)
    for k in np.unique(labels).tolist():
        own = labels[order] == k
        count, rest = int(own.sum()), int((~own).sum())
        if min(count, rest) < FEWEST_OF_CLASS or not len(ends):
            continue
        below = np.cumsum(own)[ends] / count
        others = np.cumsum(~own)[ends] / rest
        share = (1 + np.abs(below - others)) / 2
        at = int(np.argmax(share))
        if share[at] < PURE:
            continue
        bound = ranked[ends[at]]
        side = "at most" if below[at] > others[at] else "more than"
        hit = below[at] if side == "at most" else 1 - below[at]
        miss = others[at] if side == "at most" else 1 - others[at]
        return (
            f"it is {side} {bound:.6g} in {hit:.0%} of the rows of {classes[k]!r}, and in "
            f"{miss:.0%} of all others"
        )
    return ""


def _named(values: Sequence[str], labels: Array, classes: Sequence[Any]) -> str:
    """Return what is said of a word that most rows of a class have, and no others; else nothing."""
    counts = Counter(zip(values, labels.tolist(), strict=True))
    totals, sizes = Counter(values), Counter(labels.tolist())
    decided = []
    for (value, k), count in counts.most_common(200):
        others = totals[value] - count
        if sizes[k] < FEWEST_OF_CLASS or count < PURE * sizes[k]:
            continue
        if others <= (1 - PURE) * (len(labels) - sizes[k]):
            decided.append(f"{value!r} in {count / sizes[k]:.0%} of the rows of {classes[k]!r}")
    if not decided:
        return ""
    more = f" and {len(decided) - SHOWN} more" if len(decided) > SHOWN else ""
    return f"{', '.join(decided[:SHOWN])}{more}, and in hardly any others"
