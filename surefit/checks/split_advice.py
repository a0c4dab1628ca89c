"""Rows that belong together though a plain split divides them: groups, and rows in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surefit.config import set_option
from surefit.data.column_types import is_array, is_number, is_text
from surefit.data.column_values import has_words
from surefit.data.roles import get_role
from surefit.data.split_columns import NAMED_FOR_GROUPS, read_times
from surefit.data.table import Table
from surefit.data.written_values import date_order
from surefit.findings import Finding, Rule, rule

GROUPS_DIVIDED = rule(
    "SF189",
    "warning",
    "groups with one target divided between the sets",
    why=(
        "All rows of a group have one target, so a model that recognises the group in its rows "
        "gets the validation rows right without learning anything else."
    ),
    fix="Keep each group in one set: --set split.by=COLUMN.",
    accept="Rows of one group stay in both sets.",
)
TIME_DIVIDED = rule(
    "SF190",
    "warning",
    "rows in time divided at random",
    why=(
        "The target is close to that of the rows just before and after, which are in the training "
        "set. The model will be used on later rows, where these are not known."
    ),
    fix="Validate on the latest rows: --set split.time=COLUMN.",
    accept="Validation rows are drawn at random.",
)

WINDOWS_DIVIDED = rule(
    "SF196",
    "warning",
    "overlapping windows divided between the sets",
    why=(
        "Rows that share most of their steps are on both sides of a split that draws rows at "
        "random, so the validation set measures memory in part."
    ),
    fix="Validate on later windows: --set split.time=COLUMN or --eval-data; or cut windows that "
    "do not overlap, or let surefit cut them: --task forecasting.",
    accept="Windows of both sets overlap.",
)
TARGET_GUESSED = rule(
    "SF198",
    "warning",
    "target guessed among several columns",
    why="Several columns have names that targets have; only one of them was chosen.",
    fix="Name it: --set columns.label=COLUMN.",
    accept="The chosen column is the target.",
    covered_by=("SF142",),
)
MOST_PAIRS = 200
"""Neighbouring rows that are compared."""
LEAST_ROWS = 40
MOST_ROWS = 100_000
"""Rows in which the target is compared with its past."""
NEARLY_ALL = 0.95
FOLLOWS = 0.7
"""Correlation of a target with the one before it, from which on it follows its past."""


def advise_split(table: Table, label: str) -> Iterator[Finding]:
    """Yield what speaks against a split that draws rows at random, one finding per cause."""
    if table.num_rows < LEAST_ROWS or not table.profile(label).is_scalar:
        return
    others = [column for column in table.columns if column != label]
    kind = table.column_type(label)
    is_amount = is_number(kind) and not pa.types.is_boolean(kind)
    is_amount &= table.profile(label).num_distinct >= 10
    grouped = (_check_groups(table, n, label) for n in others if has_words(n, NAMED_FOR_GROUPS))
    in_time = (_check_past(table, n, label) for n in others if is_amount and _has_dates(table, n))
    for found in (grouped, in_time):
        yield from islice(filter(None, found), 1)


def check_overlap(table: Table) -> Iterator[Finding]:
    """Yield columns whose rows are windows that share steps with the row before them."""
    arrays = [name for name in table.columns if is_array(table.column_type(name))]
    for name in arrays if table.num_rows >= LEAST_ROWS else ():
        column = table.arrow[name].slice(0, MOST_PAIRS + 1)
        rows = [None if row is None else np.asarray(row, object) for row in column.to_pylist()]
        shifts = [_shift(*pair) for pair in pairwise(rows)]
        usual = max({*shifts} - {0}, key=shifts.count, default=0)
        if not usual or shifts.count(usual) < len(shifts) / 2:
            continue
        size = len(rows[0]) if rows[0] is not None else 0
        message = (
            f"rows of column {name!r} are windows: {shifts.count(usual)} of {len(shifts)} looked "
            f"at share {size - usual} of {size} steps with the row before."
        )
        yield WINDOWS_DIVIDED.finding(message, column=name)
        return


def _shift(one: Any, other: Any) -> int:
    """Return by how many steps a row is moved against the one before; 0 where they do not overlap.

    >>> _shift(np.array([1, 2, 3, 4]), np.array([2, 3, 4, 5])), _shift(np.ones(4), np.ones(4))
    (1, 0)
    """
    if one is None or other is None or one.shape != other.shape or len(one) < 4:
        return 0
    if (one == one[0]).all() or (one == other).all():
        return 0
    half = range(1, len(one) // 2 + 1)
    return next((n for n in half if (one[n:] == other[:-n]).all()), 0)


def check_target(table: Table, label: str) -> Iterator[Finding]:
    """Yield other columns that are called as targets are, where nobody named the target.

    A column that says the same in other words is no other target.
    """
    role = get_role("label")
    named = [n for n in table.columns if n != label and n.lower() in role.names]
    others = [name for name in named if role.accepts(table.column_type(name), True)]
    scalars = [name for name in (label, *others) if table.profile(name).is_scalar]
    for name in [n for n in others if n in scalars and label in scalars]:
        pairs = table.arrow.select([label, name]).group_by([label, name]).aggregate([]).num_rows
        if pairs == (table.profile(label).num_distinct or 0):
            others.remove(name)
    if others:
        shown = ", ".join(map(repr, others))
        message = f"column {label!r} is taken as the target; it may also be {shown}."
        yield TARGET_GUESSED.finding(message, column=label)


def _check_groups(table: Table, column: str, label: str) -> Finding | None:
    """Return the finding about values that recur, with one target each where chance gives others.

    By chance, a group of n rows has one target with the probability Σ pⁿ over the targets' shares.
    """
    profile, targets = table.profile(column), table.profile(label).counts
    if not profile.is_scalar or pa.types.is_floating(profile.kind) or not targets:
        return None
    groups = table.arrow.select([column, label]).drop_null().group_by(column)
    counts = groups.aggregate([(label, "count"), (label, "count_distinct")])
    sizes = np.asarray(counts[f"{label}_count"])
    is_several = sizes > 1
    if is_several.sum() < 5 or 2 * sizes[is_several].sum() < table.num_rows:
        return None
    num_targets = np.asarray(counts[f"{label}_count_distinct"])[is_several]
    shares = np.array([*targets.values()]) / sum(targets.values())
    by_chance = np.mean([(shares**size).sum() for size in sizes[is_several].tolist()])
    num_constant = int((num_targets == 1).sum())
    if num_constant < NEARLY_ALL * len(num_targets) or by_chance > 0.5:
        return None
    message = (
        f"{len(sizes):,} values of {column!r} recur in {table.num_rows:,} rows, and {label!r} is "
        f"the same in all rows of {num_constant:,} of the {len(num_targets):,} with several rows, "
        "which are divided between training and validation."
    )
    fix = f"Keep each group in one set: {set_option('split.by', column)}."
    return _advise(GROUPS_DIVIDED, message, fix, table, column)


def _has_dates(table: Table, column: str) -> bool:
    profile = table.profile(column)
    if profile.values.null_count:
        return False
    if is_text(profile.kind):
        return date_order(profile.first) is not None
    return bool(pa.types.is_timestamp(profile.kind) or pa.types.is_date(profile.kind))


def _check_past(table: Table, column: str, label: str) -> Finding | None:
    """Return the finding about a target that is close to the one before it in time."""
    some = replace(table, arrow=table.arrow.slice(0, MOST_ROWS))
    is_written = is_text(some.column_type(column))
    if is_written and date_order(pc.unique(some.arrow[column]).to_pylist()) is None:
        return None
    times = read_times(some, column)
    target = np.asarray(some.arrow[label].cast(pa.float64()).to_numpy(), np.float64)
    known = np.isfinite(target)
    times, target = times[known], target[known]
    if len(times) < LEAST_ROWS or len(np.unique(times)) < NEARLY_ALL * len(times):
        return None  # several rows of one moment: no row is the one before
    target = target[np.argsort(times, kind="stable")]
    if target[1:].std() == 0 or target[:-1].std() == 0:
        return None
    correlation = float(np.corrcoef(target[:-1], target[1:])[0, 1])
    if correlation < FOLLOWS:
        return None
    message = (
        f"The rows are in time, by {column!r}, and {label!r} follows the row before it "
        f"(correlation {correlation:.2f}); the validation rows are drawn from between."
    )
    fix = f"Validate on the latest rows: {set_option('split.time', column)}."
    return _advise(TIME_DIVIDED, message, fix, table, column)


def _advise(broken: Rule, message: str, fix: str, table: Table, column: str) -> Finding:
    fix += f" To split at random as you do now, without this warning: --set accept={broken.code}."
    return broken.finding(message, fix=fix, file=table.sources[0].file, column=column)
