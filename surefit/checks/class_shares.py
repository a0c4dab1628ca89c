"""The classes of training and validation rows, compared: missing on one side, or shifted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surefit.data.column_types import is_number, is_text
from surefit.data.row_arrays import blocks, new_array
from surefit.data.split import Rows, count_classes
from surefit.data.table import Table
from surefit.findings import Finding, rule

CLASSES_SHIFTED = rule(
    "SF185",
    "warning",
    "classes missing or with other shares in validation",
    why="Figures on such validation rows do not describe data like the training rows, and chance "
    "does not explain the difference. Nothing measures how well a missing class is learned.",
    fix="Draw both sets from the same data (leave --eval-data out), or add the missing rows.",
    accept="The sets stay as they are.",
)

MAX_CLASSES = 100
_UNLIKELY = 1e-3
_NOTABLE_SHIFT = 0.2
_FEWEST_ROWS = 50


@dataclass(frozen=True)
class Classes:
    """The class of each of some rows as a number, and the names of all classes."""

    numbers: Rows
    names: list[Any]

    def counts(self, names: Sequence[Any]) -> Rows:
        """How many rows each of the given classes has."""
        own = dict(zip(self.names, count_classes(self.numbers, len(self.names)), strict=True))
        return np.array([int(own.get(name, 0)) for name in names])


def read_classes(table: Table, rows: Rows, column: str) -> Classes | None:
    """The classes in a column with one label per row; None if there are many."""
    kind = table.column_type(column)
    if not (is_text(kind) or is_number(kind)):
        return None
    if pc.count_distinct(table.arrow[column], mode="all").as_py() > MAX_CLASSES:
        return None
    names: dict[str, Any] = {}
    numbers = new_array(len(rows), np.int16)
    for part in blocks(len(rows)):
        values = table.arrow[column].take(pa.array(rows[part])).combine_chunks()
        encoded = values.dictionary_encode("encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        here = {repr(name): name for name in encoded.dictionary.to_pylist()}
        names |= {name: here[name] for name in here if name not in names}
        places = np.array([[*names].index(name) for name in here], np.int16)
        numbers[part] = places[np.asarray(encoded.indices)]
    order = sorted(names)
    ranks = np.array([order.index(name) for name in names], np.int16)
    for part in blocks(len(rows)):
        numbers[part] = ranks[numbers[part]]
    return Classes(numbers, [names[name] for name in order])


def compare_classes(train: Classes, validation: Classes, file: str) -> list[Finding]:
    """A warning where a class lacks validation rows, or the shares differ by more than chance."""
    counts, shown = train.counts(train.names), validation.counts(train.names)
    if shown.sum() == 0 or counts.sum() == 0:
        return []
    shares, theirs = counts / counts.sum(), shown / shown.sum()
    missing = (shown == 0) & ((1 - shares) ** int(shown.sum()) < _UNLIKELY)
    if missing.any():
        names = ", ".join(
            f"{train.names[at]!r} ({counts[at]} training rows)"
            for at in np.flatnonzero(missing)[:3]
        )
        more = f" and {int(missing.sum()) - 3} more" if missing.sum() > 3 else ""
        message = f"None of the {int(shown.sum())} validation rows has the class {names}{more}."
        return [CLASSES_SHIFTED.finding(message, file=file)]
    shift = float(np.abs(shares - theirs).sum() / 2)
    expected = shares * shown.sum()
    square = float(((shown - expected) ** 2 / np.maximum(expected, 1)).sum())
    freedom = max(1, len(shares) - 1)
    by_chance = square < freedom + 4 * np.sqrt(2 * freedom) + 8
    if shift < _NOTABLE_SHIFT or by_chance or min(counts.sum(), shown.sum()) < _FEWEST_ROWS:
        return []
    most = np.argsort(-np.abs(shares - theirs), kind="stable")[:3]
    parts = ", ".join(
        f"{train.names[at]!r} has {shares[at]:.0%} of the training rows and {theirs[at]:.0%} of "
        "the validation rows"
        for at in most.tolist()
    )
    message = f"The shares of the classes differ: {parts}."
    return [CLASSES_SHIFTED.finding(message, file=file)]
