"""The two sides of the split: columns, classes, facts and channels that differ between them.

One predicate looks at every thing that has one value per row. Its values become at most ten groups
(classes, or equally filled ranges of numbers), and the shares of the groups are compared. A split
at random gives every group about its share on both sides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from surefit.config import set_option
from surefit.data.column_types import is_number, is_text
from surefit.data.split import Rows, sample_rows
from surefit.data.table import Table
from surefit.findings import Finding, rule
from surefit.inputs.row_facts import Sample, spread_places

SIDES_DIFFER = rule(
    "SF185",
    "warning",
    "validation rows unlike the training rows",
    why="Figures on such validation rows do not describe data like the training rows, and chance "
    "does not explain the difference. Nothing measures how well a missing class is learned; what "
    "values mean that no training row has cannot be learned.",
    fix="Draw both sets from the same data (leave --eval-data out), add the missing rows, or leave "
    "the column out.",
    accept="The sets stay as they are.",
)

Array = npt.NDArray[Any]
TableSides = tuple[tuple[Table, Rows], tuple[Table, Rows]]
MOST_ROWS = 20_000
RANGES, MOST_CLASSES = 10, 100
FEWEST_ROWS, FEWEST_CONSTANT = 50, 8
OF_CLASSES, OF_COLUMNS = 0.2, 0.45
"""Share of the validation rows that would have to change for the shares to agree: of the target,
and of all else."""
UNLIKELY = 1e-4
SHOWN = 3


@dataclass(frozen=True)
class Values:
    """One value per row of a thing: numbers, or texts as objects; their rows and Table."""

    values: Array
    rows: Array
    table: Table

    @classmethod
    def of_column(cls, table: Table, rows: Rows, column: str) -> Values | None:
        """Return a keyed sample of a column without blanks; None where it has no scalars."""
        kind = table.column_type(column) if column in table.columns else pa.null()
        if not (is_text(kind) or is_number(kind)):
            return None
        some = rows[sample_rows(len(rows), MOST_ROWS, 0)]
        read = table.arrow[column].take(pa.array(some))
        known = np.flatnonzero(np.asarray(pc.is_valid(read)))
        read = read.take(pa.array(known))
        if is_text(kind):
            return cls(np.asarray(read.to_pylist(), object), some[known], table)
        numbers = np.asarray(read.cast(pa.float64(), safe=False), np.float64)
        return cls(numbers, some[known], table)

    def name(self, hits: Array) -> str:
        """Return the first of some rows with their values."""
        numbers = [self.table.where(int(row))["row"] for row in self.rows[hits][:SHOWN]]
        shown = zip(self.values[hits][:SHOWN].tolist(), numbers, strict=True)
        return ", ".join(f"{_shown(value)} in row {number}" for value, number in shown)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value)


def compare(name: str, train: Values, other: Values, tried: int, least: float) -> Finding | None:
    """Return the finding about a thing whose values differ on the two sides; None for chance."""
    if len(train.values) < FEWEST_CONSTANT or not len(other.values):
        return None
    if train.values.dtype != other.values.dtype:  # the sides are read from files of their own
        return compare(name, _as_text(train), _as_text(other), tried, least)
    column = name.removeprefix("column ").strip("'")
    if (train.values == train.values[0]).all():
        return _check_constant(name, column, train, other, tried)
    groups = _grouped(train.values, other.values)
    if groups is None:
        return None
    names, counts, shown = groups
    shares, theirs = counts / counts.sum(), shown / shown.sum()
    missing = (shown == 0) & ((1 - shares) ** int(shown.sum()) < 10 * UNLIKELY)
    is_target = least == OF_CLASSES
    if is_target and missing.any():
        listed = ", ".join(
            f"{names[at]} ({counts[at]} training rows)" for at in np.flatnonzero(missing)[:SHOWN]
        )
        more = f" and {int(missing.sum()) - SHOWN} more" if missing.sum() > SHOWN else ""
        message = f"None of the {int(shown.sum())} validation rows has the class {listed}{more}."
        return SIDES_DIFFER.finding(message, file=other.table.sources[0].file)
    distance = float(np.abs(shares - theirs).sum() / 2)
    expected = (counts + shown) / (counts + shown).sum() * shown.sum()
    square = float(((shown - expected) ** 2 / np.maximum(expected, 1)).sum())
    freedom = max(1, len(shares) - 1)
    by_chance = square < freedom + 4 * math.sqrt(2 * freedom) + 8
    if distance < least or by_chance or min(counts.sum(), shown.sum()) < FEWEST_ROWS:
        return None
    most = np.argsort(-np.abs(shares - theirs), kind="stable")[:SHOWN]
    parts = ", ".join(
        f"{names[at]} {'has' if is_target else 'is'} {shares[at]:.0%} of the training rows and "
        f"{theirs[at]:.0%} of the validation rows"
        for at in most.tolist()
    )
    message = f"{name}: the shares differ: {parts}."
    return SIDES_DIFFER.finding(message, file=other.table.sources[0].file, column=column)


def _as_text(given: Values) -> Values:
    return Values(given.values.astype(str).astype(object), given.rows, given.table)


def _check_constant(
    name: str, column: str, train: Values, other: Values, tried: int
) -> Finding | None:
    """Return the finding about one value in training, and others in validation."""
    unlike = np.flatnonzero(other.values != train.values[0])
    hits, shown, trained = len(unlike), len(other.values), len(train.values)
    if hits < 2 or hits * math.log(shown / (shown + trained)) + math.log(tried) > math.log(
        UNLIKELY
    ):
        return None
    message = (
        f"{name} is {_shown(train.values[:1].tolist()[0])} in all {trained:,} training rows, and "
        f"another value in {hits:,} of {shown:,} validation rows: {other.name(unlike)}."
    )
    fix = f"{SIDES_DIFFER.fix.removesuffix('.')}: {set_option('ignore', column)}."
    where = other.table.where(int(other.rows[unlike[0]]))
    own = column in train.table.columns
    return SIDES_DIFFER.finding(message, where, fix=fix if own else "", column=column)


def _grouped(one: Array, two: Array) -> tuple[list[str], Array, Array] | None:
    """Return groups of values, and how many values of each side are in them; None for names."""
    every = np.concatenate([one, two])
    names, codes = np.unique(every, return_inverse=True)
    if every.dtype.kind == "f" and len(names) > 2 * RANGES:
        bounds = np.unique(np.quantile(every, np.linspace(0, 1, RANGES + 1)[1:-1]))
        codes = np.searchsorted(bounds, every, side="left")
        edges = [every.min(), *bounds, every.max()]
        shown = [f"{a:.4g} to {b:.4g}" for a, b in itertools.pairwise(edges)]
    elif len(names) <= MOST_CLASSES:
        shown = [_shown(name) for name in names.tolist()]
    else:
        return None
    counts = [np.bincount(part, minlength=len(shown)) for part in np.split(codes, [len(one)])]
    return shown, counts[0], counts[1]


def check_columns(
    sides: TableSides, columns: Sequence[str], read: Collection[str], label: str | None
) -> Iterator[Finding]:
    """Yield columns of a Table, and classes or targets, that differ on the two sides.

    Of columns that are not `read`, only those that are constant in training are reported.
    """
    for column in dict.fromkeys([*columns, *filter(None, [label])]):
        train, other = (Values.of_column(*side, column) for side in sides)
        if train is not None and other is not None:
            least = OF_CLASSES if column == label else OF_COLUMNS
            least = least if column == label or column in read else math.inf
            found = compare(f"column {column!r}", train, other, len(columns) + 1, least)
            if found is not None:
                yield found


def check_samples(train: Sample, other: Sample, column: str) -> Iterator[Finding]:
    """Yield the first fact or feature of encoded rows that differs on the two sides."""
    things = [
        (f"the {name} of rows", values, other.facts[name])
        for name, values in train.facts.items()
        if name in other.facts and np.nanstd(values) > 0
    ]
    width = train.means.shape[1]
    if width == other.means.shape[1]:
        is_constant = (train.means == train.means[:1]).all(0)
        chosen = np.union1d(np.flatnonzero(is_constant), spread_places(width))
        things += [
            (f"column {column!r}: feature {n}", train.means[:, n], other.means[:, n])
            for n in chosen.tolist()
        ]
    for name, *values in things:
        sides = [
            Values(each[known], side.rows[known], side.table)
            for each, side in zip(values, (train, other), strict=True)
            for known in [np.isfinite(each)]
        ]
        found = compare(name, sides[0], sides[1], max(len(things), width), OF_COLUMNS)
        if found is not None:
            yield replace(found, where={**found.where, **({"column": column} if column else {})})
            return  # the others mostly follow from it
