"""Encoded inputs that are not what they seem: alike in all rows, of odd magnitudes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import Field
from surefit.checks.encoded_tokens import check_unknown_tokens
from surefit.checks.ledger import target_unit
from surefit.checks.number_values import (
    check_constant_features,
    check_magnitudes,
    of_store,
)
from surefit.data.table import Table
from surefit.findings import Finding, rule
from surefit.inputs.encoder import Encoder
from surefit.inputs.row_input import ALONE, RowInput
from surefit.inputs.store import Store

Array = npt.NDArray[Any]
SAME_INPUTS = rule(
    "SF246",
    "warning",
    "all training rows have the same input",
    why="Nothing can be learned from inputs that do not differ, whatever the labels are.",
    fix="Check how the inputs were made: a fixed file, zeros or a placeholder are usual causes.",
    accept="The run starts without the warning; nothing but the most common label is learned.",
)

Sides = tuple[tuple[Store, Table], tuple[Store, Table]]
CHUNK = 1 << 20
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


def check_stores(
    sides: Sides, fields: Mapping[str, Field], encoder: Encoder, given: RowInput | None
) -> Iterator[Finding]:
    """Encoded inputs of training and validation rows; `given` is what is known of such inputs."""
    (train, table), (validation, shown) = sides
    column = next((encoder.roles[role] for role in ALONE if role in encoder.roles), "")
    unknown = [*check_unknown_tokens(train, table, encoder)]
    yield from unknown or check_unknown_tokens(validation, shown, encoder)
    predicts_row = "labels" in fields and target_unit(fields) == "rows"
    if predicts_row:
        same = list(check_same_inputs(train, column))
        yield from same
        if same:
            return
    name = given.amounts(encoder) if given is not None else None
    if name is not None:
        numbers, others = (of_store(*side, name, column) for side in sides)
        found = [*check_magnitudes(numbers, "training")] if numbers is not None else []
        if numbers is not None:
            yield from check_constant_features(numbers, others)
        if others is not None and not found:
            found = [*check_magnitudes(others, "validation")]
        yield from found
    if given is not None and given.check is not None:
        yield from given.check(train, table, encoder)
