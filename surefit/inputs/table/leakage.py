"""Columns that give the target away: equal to it, adding up to it, or deciding it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from surefit.config import joint_parts, set_option
from surefit.data.column_values import has_words
from surefit.data.split_columns import NAMED_FOR_GROUPS
from surefit.findings import Finding, rule

TARGET_LEAKAGE = rule(
    "SF232",
    "warning",
    "columns that give the target away",
    why="The model would read the answer off them, and fail where they are not known yet.",
    fix="Leave the columns out (--set ignore=COLUMN), unless they are known before the target is.",
    accept="The columns are used as inputs.",
)


MAX_ROWS = 4096
MAX_COLUMNS = 256
NEARLY_ONE = 0.999
MAX_CLASSES = 100
FEWEST_PER_VALUE = 3
"""Rows per value of a column with many values, on average, before it is said to decide."""
SHOWN = 5
FEWEST_ROWS = 5
"""Rows that each class must have before a range of values is said to decide it."""


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
    """Yield a warning for each column, or pair of columns, that the target can be read off."""
    rows = [(cells, target) for cells, target in sample.rows if target is not None]
    if len(rows) < 20:
        return
    if all(isinstance(target, list | np.ndarray) for _, target in rows):
        yield from _check_each(rows, columns, label)
        return
    targets = [target for _, target in rows]
    classes = [str(target) for target in targets]
    cells = {name: [row.get(name) for row, _ in rows] for name in columns[:MAX_COLUMNS]}
    named = set()
    if all(_is_number(target) for target in targets):
        for found in _check_numbers(cells, np.asarray(targets, np.float64), label):
            named.add(found.where["column"])
            yield found
    if 1 < len(set(classes)) <= MAX_CLASSES:
        left = {name: values for name, values in cells.items() if name not in named}
        yield from _check_classes(left, classes, label)


def _check_each(
    rows: Sequence[tuple[Mapping[str, Any], Any]], columns: Sequence[str], label: str
) -> Iterator[Finding]:
    """Yield each of several targets on its own, and the sum of those that are numbers."""
    names = joint_parts(label) or [f"{label}[{at}]" for at in range(len(rows[0][1]))]
    for at, name in enumerate(names):
        each = [(cells, target[at]) for cells, target in rows if at < len(target)]
        yield from check_leakage(Sample(each), columns, name)
    numbers = [(c, target) for c, target in rows if all(_is_number(value) for value in target)]
    if len(names) > 1 and len(numbers) >= 20:
        cells = {name: [row.get(name) for row, _ in numbers] for name in columns[:MAX_COLUMNS]}
        sums = np.asarray([sum(target) for _, target in numbers], np.float64)
        yield from _check_numbers(cells, sums, " + ".join(names[:SHOWN]))


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
            yield _leak(message, name)
    close = 1e-6 * max(1.0, float(np.abs(target).max()))
    for place, values in enumerate(matrix):
        sums = (np.abs(matrix[place + 1 :] + values - target) <= close).all(1)
        for other in np.flatnonzero(sums):
            pair = names[place], names[place + 1 + int(other)]
            message = f"columns {pair[0]!r} and {pair[1]!r} add up to the target {label!r}."
            yield _leak(message, *pair)


def _check_classes(
    cells: Mapping[str, list[Any]], targets: list[str], label: str
) -> Iterator[Finding]:
    for name, values in cells.items():
        found = _code(values, targets)
        if not found and all(_is_number(value) for value in values):
            found = _thresholds(values, targets)
        if found:
            message = f"column {name!r} decides {label!r} in all {len(targets)} rows looked at"
            yield _leak(f"{message}: {found}.", name)


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
    num_classes = len({*targets})
    few = len(pairs) <= min(max(2 * num_classes, 10), len(values) // 2)
    recurring = FEWEST_PER_VALUE * len(pairs) <= len(values) and _fewest(targets) >= FEWEST_ROWS
    if not is_pure or len(pairs) < 2 or not (few or recurring):
        return ""
    shown = ", ".join(f"{key!r} is {target!r}" for key, target in list(pairs.items())[:3])
    return f"each of its {len(pairs)} values has one class ({shown})"


def _thresholds(values: list[Any], targets: list[str]) -> str:
    """What is said of a column in whose order each class is one range of values; else nothing."""
    order = np.argsort(np.asarray(values, np.float64), kind="stable")
    numbers = np.asarray(values, np.float64)[order]
    classes = np.asarray(targets)[order]
    cuts = np.flatnonzero(classes[1:] != classes[:-1])
    apart = bool((numbers[cuts] < numbers[cuts + 1]).all())
    if not apart or len(cuts) != len({*targets}) - 1 or _fewest(targets) < FEWEST_ROWS:
        return ""
    at = int(cuts[0])
    return (
        f"values up to {numbers[at]:g} are {str(classes[at])!r}, values from "
        f"{numbers[at + 1]:g} on {str(classes[at + 1])!r}"
    )


def _fewest(targets: list[str]) -> int:
    return min(Counter(targets).values())
