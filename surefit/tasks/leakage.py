"""Columns that give the target away: equal to it, adding up to it, or deciding it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from surefit.findings import Finding, rule

TARGET_LEAKAGE = rule(
    "SF232",
    "warning",
    "columns that give the target away",
    why="The model would read the answer off them, and fail where they are not known yet.",
    fix="Leave them out with ignore, unless they are known before the target is.",
    accept="The columns are used as inputs.",
)


MAX_ROWS = 4096
MAX_COLUMNS = 256
NEARLY_ONE = 0.999
MAX_CLASSES = 100


@dataclass
class Sample:
    """Rows spread evenly over all that were added, at most MAX_ROWS of them."""

    rows: list[tuple[Mapping[str, Any], Any]] = field(default_factory=list)
    stride: int = 1
    seen: int = 0

    def add(self, cells: Mapping[str, Any], target: Any) -> None:
        """Keep the row if its turn has come; thin out the kept ones when they are too many."""
        if self.seen % self.stride == 0:
            self.rows.append((cells, target))
            if len(self.rows) > MAX_ROWS:
                self.rows, self.stride = self.rows[::2], 2 * self.stride
        self.seen += 1


def check_leakage(sample: Sample, columns: Sequence[str], label: str) -> Iterator[Finding]:
    """A warning for each column, or pair of columns, that the target can be read off."""
    rows = [(cells, target) for cells, target in sample.rows if target is not None]
    if len(rows) < 20:
        return
    targets = [target for _, target in rows]
    classes = [str(target) for target in targets]
    cells = {name: [row.get(name) for row, _ in rows] for name in columns[:MAX_COLUMNS]}
    if all(_is_number(target) for target in targets):
        yield from _check_numbers(cells, np.asarray(targets, np.float64), label)
    if len(set(classes)) <= MAX_CLASSES:
        text = {k: v for k, v in cells.items() if not all(_is_number(value) for value in v)}
        yield from _check_classes(text, classes, label)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) and bool(np.isfinite(value))


def _check_numbers(cells: Mapping[str, list[Any]], target: Any, label: str) -> Iterator[Finding]:
    numeric = {k: v for k, v in cells.items() if all(_is_number(value) for value in v)}
    names = [name for name, values in numeric.items() if len(set(values)) > 1]
    if not names or target.std() == 0:
        return
    matrix = np.asarray([numeric[name] for name in names], np.float64)  # (C, N)
    for name, values in zip(names, matrix, strict=True):
        alike = float(np.corrcoef(values, target)[0, 1])
        if abs(alike) > NEARLY_ONE:
            message = f"column {name!r} and the target {label!r} have the correlation {alike:.4f}."
            yield TARGET_LEAKAGE.finding(message, column=name)
    close = 1e-6 * max(1.0, float(np.abs(target).max()))
    for place, values in enumerate(matrix):
        sums = (np.abs(matrix[place + 1 :] + values - target) <= close).all(1)
        for other in np.flatnonzero(sums):
            pair = f"{names[place]!r} and {names[place + 1 + int(other)]!r}"
            message = f"columns {pair} add up to the target {label!r}."
            yield TARGET_LEAKAGE.finding(message, column=names[place])


def _check_classes(
    cells: Mapping[str, list[Any]], targets: list[str], label: str
) -> Iterator[Finding]:
    num_classes = len(set(targets))
    for name, values in cells.items():
        keys = [str(value) for value in values]
        pairs = set(zip(keys, targets, strict=True))
        if num_classes > 1 and len(pairs) == len(set(keys)) <= max(2 * num_classes, 10):
            message = f"each value of column {name!r} comes with one class of {label!r} only."
            yield TARGET_LEAKAGE.finding(message, column=name)
