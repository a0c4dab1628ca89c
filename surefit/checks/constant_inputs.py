"""Inputs that do not differ: nothing can be learned from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from surefit.config import set_option
from surefit.data.column_types import is_number, is_text
from surefit.data.split import Rows
from surefit.data.table import Table
from surefit.encode.store import Store
from surefit.findings import Finding, rule

SAME_INPUTS = rule(
    "SF246",
    "warning",
    "all training rows have the same input",
    why="Nothing can be learned from inputs that do not differ, whatever the labels are.",
    fix="Check how the inputs were made: a fixed file, zeros or a placeholder are usual causes.",
    accept="The run starts without the warning; nothing but the most common label is learned.",
)

CONSTANT_FEATURES = rule(
    "SF247",
    "info",
    "features that never change",
    why="They have one value in all training rows, so that nothing is learned from them.",
    fix="Nothing to do, unless these features should differ.",
)

CONSTANT_IN_TRAINING = rule(
    "SF248",
    "warning",
    "constant in training, but not in validation",
    why=("What other values mean cannot be learned, so the evaluation is on rows of another kind."),
    fix="Draw both sets from the same rows (leave --eval-data out), or leave the column out.",
    accept="The sets stay as they are.",
)

Array = npt.NDArray[Any]
Sides = tuple[tuple[Store, Table], tuple[Store, Table]]
CHUNK = 1 << 20
UNLIKELY = 1e-4
FEWEST_ROWS = 8
SHOWN = 3


def check_same_inputs(store: Store, column: str) -> Iterator[Finding]:
    """Refuse training rows that are equal in all but their labels."""
    inputs = [name for name in store.fields if name != "labels"]
    if len(store) < FEWEST_ROWS or "labels" not in store.fields or not inputs:
        return
    if not all(_all_equal(store, name) for name in inputs):
        return
    first = store.value(inputs[0], 0)
    what = f"{first.flat[0] + 0.0:g} everywhere" if np.ptp(first) == 0 else "the same values"
    message = f"column {column!r}: the inputs of all {len(store):,} training rows are equal: {what}"
    yield SAME_INPUTS.finding(f"{message} (shape {list(first.shape)}).", column=column)


def _all_equal(store: Store, name: str) -> bool:
    """Whether all rows of a column equal the first; it stops at the first chunk that does not."""
    first = store.value(name, 0)
    values = store.values(name)
    if not first.size or len(values) != len(store) * first.size:
        return False
    if store.fields[name].rank:
        ends = store.offsets(name)
        if (ends != np.arange(len(ends)) * first.size).any():
            return False
    step = max(1, CHUNK // first.size) * first.size
    flat = first.ravel()
    for start in range(0, len(values), step):
        if not (values[start : start + step].reshape(-1, flat.size) == flat).all():
            return False
    return True


def check_constant_features(sides: Sides, name: str, column: str) -> Iterator[Finding]:
    """Features that are constant in training rows; a warning where they are not in validation."""
    (train, _), (validation, shown) = sides
    if name not in train.fields or len(train) < FEWEST_ROWS:
        return
    width = int(train.value(name, 0).shape[-1])
    low, high = _ranges(train, name, width)
    constant = np.flatnonzero(low == high)
    if not len(constant) or len(constant) == width:
        return
    varied = _rows_unlike(validation, name, constant, low[constant])
    odd = [
        (int(feature), rows)
        for feature, rows in zip(constant, varied, strict=True)
        if _is_unlikely(len(rows), len(validation), len(train), width)
    ]
    numbers = ", ".join(map(str, constant[:SHOWN])) + (" …" if len(constant) > SHOWN else "")
    if not odd:
        message = f"column {column!r}: {len(constant)} of {width} features never change: {numbers}."
        yield CONSTANT_FEATURES.finding(message, column=column)
        return
    feature, rows = odd[0]
    where = shown.where(int(validation.source_row[rows[0]]))
    message = (
        f"column {column!r}: feature {feature} is {low[feature] + 0.0:g} in all {len(train):,} "
        f"training rows, and another value in {len(rows):,} of {len(validation):,} validation "
        f"rows (row {where['row']}, for example). Features of this kind: {len(odd)} of {width}."
    )
    yield CONSTANT_IN_TRAINING.finding(message, where, column=column)


def _ranges(store: Store, name: str, width: int) -> tuple[Array, Array]:
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    flat = store.values(name)
    step = max(1, CHUNK // width) * width
    for start in range(0, len(flat), step):
        chunk = flat[start : start + step].reshape(-1, width)
        low, high = np.minimum(low, chunk.min(0)), np.maximum(high, chunk.max(0))
    return low, high


def _rows_unlike(store: Store, name: str, features: Array, known: Array) -> list[Array]:
    """The rows in which each feature has another value than the known one."""
    found: list[list[Array]] = [[] for _ in features]
    if not len(store):
        return [np.empty(0, np.int64) for _ in features]
    flat, offsets = store.values(name), store.offsets(name)
    width = int(store.value(name, 0).shape[-1])
    step = max(1, CHUNK // width) * width
    for start in range(0, len(flat), step):
        chunk = flat[start : start + step].reshape(-1, width)[:, features]
        for at in np.flatnonzero((chunk != known).any(0)).tolist():
            places = start + np.flatnonzero(chunk[:, at] != known[at]) * width
            found[at].append(np.searchsorted(offsets, places, side="right") - 1)
    none = [np.empty(0, np.int64)]
    return [np.unique(np.concatenate(each or none)) for each in found]


def _is_unlikely(hits: int, shown: int, trained: int, tried: int) -> bool:
    """Whether chance hardly puts all rows with a value into one set, for one of `tried` columns."""
    if hits < 2 or not shown:
        return False
    return hits * math.log(shown / (shown + trained)) + math.log(tried) < math.log(UNLIKELY)


def check_constant_columns(
    sides: tuple[tuple[Table, Rows], tuple[Table, Rows]], columns: Sequence[str]
) -> Iterator[Finding]:
    """Columns of a table with one value in the training rows and others in the validation rows."""
    (table, train), (other, validation) = sides
    if len(train) < FEWEST_ROWS or not len(validation):
        return
    for column in columns:
        kind = table.column_type(column)
        if not (is_number(kind) or is_text(kind)) or column not in other.columns:
            continue
        value = table.arrow[column][int(train[0])]
        if not value.is_valid or not _equal(table, column, value)[train].all():
            continue
        unlike = validation[~_equal(other, column, value)[validation]]
        if _is_unlikely(len(unlike), len(validation), len(train), len(columns)):
            yield _varies(other, column, (value.as_py(), unlike), (train, validation))


def _equal(table: Table, column: str, value: pa.Scalar) -> Array:
    values = table.arrow[column]
    if values.type != value.type:  # the sides are read from files of their own
        values, value = values.cast(pa.string()), value.cast(pa.string())
    return np.asarray(pc.equal(values, value).fill_null(False))


def _varies(
    table: Table, column: str, values: tuple[Any, Rows], rows: tuple[Rows, Rows]
) -> Finding:
    known, unlike = values
    named: Mapping[int, Any] = {
        int(table.where(int(row))["row"]): table.arrow[column][int(row)].as_py()
        for row in unlike[:SHOWN]
    }
    shown = ", ".join(f"{value!r} in row {row}" for row, value in named.items())
    message = (
        f"column {column!r} is {known!r} in all {len(rows[0]):,} training rows, and another value "
        f"in {len(unlike):,} of {len(rows[1]):,} validation rows: {shown}."
    )
    fix = (
        "Draw both sets from the same rows (leave --eval-data out), or leave the column out: "
        f"{set_option('ignore', column)}."
    )
    return CONSTANT_IN_TRAINING.finding(
        message, table.where(int(unlike[0])), fix=fix, column=column
    )
