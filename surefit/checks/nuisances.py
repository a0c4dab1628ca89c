"""One fact that decides the class: how long, how large, how written, where in the file.

A model reads such a fact instead of what the row is about. Facts are those that the making of a row
leaves behind, so that a loud or bright thing is none; a class must be parted from all others by a
gap, or have values of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.data.column_types import is_text
from surefit.findings import Finding, rule
from surefit.inputs.encoder import Encoder
from surefit.inputs.row_facts import Sample

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
FEWEST_ROWS, FEWEST_OF_CLASS = 100, 12
PURE = 0.985
"""The mean of the shares of rows on the right side, in the class and in all others."""
MOST_CLASSES = 40
FEWEST_WORDS = 5
SHOWN = 3
FORMS = (
    *("length", "width", "height", "sampling rate", "seconds", "constant end", "clipped share"),
    *("capital letters", "characters", "spaces at the ends"),
)
"""Facts that decide a class only by how rows were made."""


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
        "last word": [each[-1] for each in words],
        "last character": [text.rstrip()[-1:] for text in texts],
    }
    return numbers, names


def check_nuisances(sample: Sample, encoder: Encoder, classes: Sequence[Any]) -> Iterator[Finding]:
    """Yield facts that decide a class."""
    labels = sample.labels
    if labels is None or not 2 <= len(classes) <= MOST_CLASSES or len(labels) < FEWEST_ROWS:
        return
    numbers: dict[str, Array] = {n: v for n, v in sample.facts.items() if is_form(n)}
    names: Mapping[str, list[str]] = {}
    column = encoder.roles.get("text", "")
    if column in sample.table.columns and is_text(sample.table.column_type(column)):
        texts = [str(row[column] or "") for row in sample.table.rows(sample.rows.tolist())]
        made, names = text_forms(texts)
        numbers |= made
    for name, values in numbers.items():
        if found := _parted(values, labels, classes):
            where = sample.where(sample.rows[0])
            yield DECIDED_BY_FORM.finding(f"the {name} decides the class: {found}.", where)
    for name, found_values in names.items():
        if found := _named(found_values, labels, classes):
            where = sample.where(sample.rows[0])
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
