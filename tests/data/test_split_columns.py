"""Columns that say which rows are validation rows, and the groups of `split.by` by class."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pytest

import surefit
from surefit.config import Splitting
from surefit.data.python.rows_to_arrow import open_rows
from surefit.data.split import split_by_group
from surefit.data.split_columns import divide_by_time, find_part_column, read_times
from surefit.data.table import Table
from surefit.errors import UsageError

FIRST = date(2024, 1, 1)


def table(**columns: list[Any]) -> Table:
    """Rows with these columns."""
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    return open_rows(rows)


def measured(**columns: list[Any]) -> list[dict[str, Any]]:
    """Rows of a table whose label follows from a number, with more columns."""
    return [
        {"size": n * 7 % 31 + n / 100, "label": "ab"[n * 7 % 31 > 15]}
        | {name: values[n] for name, values in columns.items()}
        for n in range(60)
    ]


def test_part_column_is_found_and_divides_the_rows() -> None:
    data = table(text=["a", "b", "c", "d"], Split=["train", "VAL", "test", "Train"])
    found = find_part_column(data, Splitting(), False, {})
    assert found is not None
    train, held, other = found.divide(np.arange(4))
    assert (train.tolist(), held.tolist(), other.tolist()) == ([0, 3], [1], [2])
    places = found.divide(np.array([2, 3]))  # of a sample of rows
    assert [part.tolist() for part in places] == [[1], [], [0]]


def test_test_rows_are_the_validation_set_where_there_is_no_other() -> None:
    found = find_part_column(table(fold=["train", "test", "train"]), Splitting(), False, {})
    assert found is not None
    assert [part.tolist() for part in found.divide(np.arange(3))] == [[0, 2], [1], []]


@pytest.mark.parametrize(
    ("columns", "asked", "roles"),
    [
        ({"split": ["train", "train"]}, Splitting(), {}),
        ({"split": ["train", None]}, Splitting(), {}),
        ({"split": ["train", "other"]}, Splitting(), {}),
        ({"split": ["dev", "test"]}, Splitting(), {}),
        ({"split": [0, 1]}, Splitting(), {}),
        ({"kind": ["train", "test"]}, Splitting(), {}),
        ({"split": ["train", "test"]}, Splitting(column="none"), {}),
        ({"split": ["train", "test"]}, Splitting(by="split"), {}),
        ({"split": ["train", "test"]}, Splitting(), {"label": "split"}),
    ],
)
def test_other_columns_divide_nothing(columns: Any, asked: Splitting, roles: Any) -> None:
    assert find_part_column(table(**columns), asked, False, roles) is None


def test_named_column_needs_parts() -> None:
    data = table(kind=["train", "test"], colour=["r", "g"])
    assert find_part_column(data, Splitting(column="kind"), False, {}) is not None
    with pytest.raises(UsageError, match="its values are 'r', 'g'"):
        find_part_column(data, Splitting(column="colour"), False, {})
    with pytest.raises(UsageError, match="both name validation rows"):
        find_part_column(data, Splitting(column="kind"), True, {})


@pytest.mark.parametrize(
    "values",
    [
        [FIRST + timedelta(days=n) for n in range(3)],
        [datetime(2024, 1, 1 + n) for n in range(3)],
        ["2024-01-01", "2024-01-02", "2024-01-03"],
        ["1.1.2024", "2.1.2024", "3.1.2024"],
        [0, 86400, 2 * 86400],
    ],
)
def test_times_are_seconds_or_numbers(values: list[Any]) -> None:
    times = read_times(table(at=values), "at")
    assert (times - times[0]).tolist() == [0, 86400, 2 * 86400]


def test_times_must_be_there() -> None:
    with pytest.raises(UsageError, match="1 of 3 rows have no value there; row 1 of"):
        read_times(table(at=[1.0, None, 3.0]), "at")


def test_latest_rows_with_ties_and_a_gap() -> None:
    times = np.array([1.0, 1, 2, 3, 3, 3])
    train, latest, between = divide_by_time(times, 2, 0)
    assert (train.tolist(), latest.tolist(), between.tolist()) == ([0, 1, 2], [3, 4, 5], [])
    train, latest, between = divide_by_time(times, 2, 2)
    assert (train.tolist(), between.tolist()) == ([0, 1], [2])
    train, latest, _ = divide_by_time(np.array([1.0, 1, 1, 2]), 2, 0)
    assert (train.tolist(), latest.tolist()) == ([0, 1, 2], [3])  # never all rows


def test_groups_keep_the_shares_of_classes() -> None:
    groups = np.repeat(np.arange(40, dtype=np.uint64), 5) + 1
    classes = np.repeat(np.arange(40) % 10 < 2, 5).astype(np.int64)
    rows = np.arange(200, dtype=np.uint64) + 1
    for seed in range(20):
        split = split_by_group(groups, rows, rows, 0.25, seed, classes)
        assert np.bincount(classes[split.evaluation]).tolist() == [40, 10]
        assert not {*groups[split.evaluation].tolist()} & {*groups[split.train].tolist()}


def test_plan_uses_the_column_and_reports_it() -> None:
    data = measured(split=[("train", "train", "val", "test")[n % 4] for n in range(60)])
    plan = surefit.check(data=data, model="tiny:mlp", quiet=True)
    assert plan.ledger is not None
    assert (plan.ledger.train_rows, plan.ledger.eval_rows) == (30, 15)
    assert (plan.ledger.rows, plan.ledger.dropped_rows) == (60, {"test_row": 15})
    assert plan.columns == {"size": "features", "label": "label", "split": "split.column"}
    options = {"split": {"column": "none"}, "ignore": "split"}
    whole = surefit.check(data=data, model="tiny:mlp", **options, quiet=True)
    assert whole.ledger is not None
    assert (whole.ledger.used_rows, whole.ledger.dropped_rows) == (60, {})


def test_plan_splits_by_time_and_counts_the_gap() -> None:
    days = [str(FIRST + timedelta(days=n * 13 % 60)) for n in range(60)]
    options = {"split": {"time": "day", "gap": "3d"}}
    plan = surefit.check(data=measured(day=days), model="tiny:mlp", **options, quiet=True)
    assert plan.ledger is not None
    assert (plan.ledger.train_rows, plan.ledger.eval_rows) == (52, 6)
    assert plan.ledger.dropped_rows == {"in_gap": 2}
