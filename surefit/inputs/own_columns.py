"""Columns of numbers as they are, for a module of the user's own with a `loss_fn`.

Nothing is masked, reshaped, renamed or scaled: `forward` and `loss_fn` get the columns of numbers
under the names that the data has, integers as integers. The columns are extra columns of the
Encoder, so rows to predict for need only those that `forward` reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.batches.field import Field, lead_column, starts_in_time, well_known_fields
from surefit.data.column_types import is_array, is_number, list_axes
from surefit.data.data_rules import MISSING_COLUMN, WRONG_SHAPE, WRONG_TYPE
from surefit.data.roles import ROLES, get_role
from surefit.data.row_arrays import row_shape
from surefit.data.table import Table
from surefit.findings import Finding, rule
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.encoder import Encoder

PADDED_COLUMN = rule(
    "SF760",
    "warning",
    "rows of different lengths padded with 0",
    why=(
        "A loss that reads the column reads the padding, too, and a mean over its elements is no "
        "mean over rows."
    ),
    fix="Use the mask of the column in forward and in loss_fn, or give all rows one length.",
    accept="The rows are padded.",
)

NAMES_IN_BATCHES = {role.batch_column for role in ROLES.values()} | {"features", "input_ids"}
"""Names that batches of other tasks have: a module that asks for one does not mean its columns."""

LOOKED_AT = 1000
"""Rows whose shapes are compared; all rows must have the most common one."""


def suits(table: Table, required: Sequence[str] | None, arguments: Sequence[str]) -> bool:
    """Return whether a module with these arguments can be called with the columns of numbers.

    Where there are other columns, such as texts, it has to name those of numbers. `required` are
    its arguments without a default; None for a model of transformers.
    """
    if required is None:
        return False
    known = _names_in_batch(table)
    if not has_numbers(table) and not (required and known.issuperset(required)):
        return False
    asks_for_other = any(name in NAMES_IN_BATCHES and name not in known for name in arguments)
    return not asks_for_other and can_call(table, required)


def has_numbers(table: Table) -> bool:
    """Return whether all columns are numbers or arrays of them."""
    return all(_is_numeric(table, name) for name in table.columns)


def can_call(table: Table, required: Sequence[str]) -> bool:
    """Whether every argument has the name of a column, or the only one gets the only input."""
    unknown = [name for name in required if name not in _names_in_batch(table)]
    return not unknown or (len(unknown) == len(required) == 1 and only_input(table) is not None)


def check_call(table: Table, required: Sequence[str] | None) -> None:
    """Refuse a module whose arguments are not named after the columns."""
    if required is None or can_call(table, required):
        return
    numbers = ", ".join(numbers_of(table))
    raise MISSING_COLUMN.error(
        f"forward requires {', '.join(required)}; the columns of numbers are {numbers}.",
        fix="Name the arguments of forward after the columns, or store the columns that one "
        "argument reads as one array.",
        file=table.sources[0].file,
    )


def only_input(table: Table) -> str | None:
    """Return the only column, or the only one whose name is not that of a label; None if there are
    more.

    A module with one argument of another name reads it.
    """
    labels = get_role("label").names
    numbers = numbers_of(table)
    inputs = [name for name in numbers if name.lower() not in labels] or numbers
    return inputs[0] if len(inputs) == 1 else None


def _names_in_batch(table: Table) -> set[str]:
    """Return the columns, and the masks that they may have."""
    arrays = [name for name in table.columns if is_array(table.column_type(name))]
    made = {"attention_mask"} if lead_column(arrays) else set()
    return {*numbers_of(table), *map(mask_of, arrays), *made}


def own_fields(table: Table) -> tuple[dict[str, Field], list[Finding]]:
    """Return how each column of numbers becomes a tensor.

    Rows may differ in the size of their first axis; `encode` refuses those that differ in others.
    """
    made: dict[str, Field] = {}
    found = []
    lead = lead_column(table.columns)
    for name in numbers_of(table):
        sizes, value = row_shape(table, name).axes, list_axes(table.column_type(name))[1]
        axes = tuple(f"{name}.{place}" for place in range(len(sizes)))
        is_integer, is_boolean = pa.types.is_integer(value), pa.types.is_boolean(value)
        made[name] = Field(axes, "bool" if is_boolean else "int64" if is_integer else "float32")
        is_ragged = bool(sizes) and sizes[0].is_ragged
        if is_ragged or (sizes and name == lead):
            usual = well_known_fields().get(name) if lead is not None else None
            made[name] = replace(made[name], axes=(f"{name}.time", *axes[1:]))
            if usual is not None and (usual.rank, usual.dtype) == (len(axes), made[name].dtype):
                made[name] = usual
        if is_ragged:
            mask = "attention_mask" if lead is not None else mask_of(name)
            message = (
                f"rows of column {name!r} have {sizes[0]} values along their first axis. In a "
                f"batch, shorter ones are padded with {made[name].pad}; {mask!r} is 1 for values, "
                "0 for padding."
            )
            found.append(PADDED_COLUMN.finding(message, column=name))
    return made, found


def mask_of(column: str) -> str:
    """Return the name of the mask of a column whose rows have different lengths."""
    return f"{column}_mask"


def _masked(encoder: Encoder) -> list[str]:
    """Return columns whose rows are padded, and that have no attention mask."""
    lead = lead_column(encoder.extras)
    return [
        name
        for name, spec in encoder.extras.items()
        if starts_in_time(spec) and name != lead and spec.aligned_with is None
    ]


def fields_of(encoder: Encoder) -> dict[str, Field]:
    """Return the Encoder's extra columns, which are those of the data, and their masks."""
    extras = encoder.extras
    masks = {mask_of(name): Field(extras[name].axes[:1], "int64", 0) for name in _masked(encoder)}
    return {**extras, **masks}


def fit(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> tuple[Encoder, list[Finding]]:
    """Return the most common shape of a row in each column."""
    seen = {name: Counter[tuple[int, ...]]() for name in encoder.extras}
    for row in islice(rows, LOOKED_AT):
        for name, shapes in seen.items():
            if row[name] is not None:
                shapes[_shape(row[name], name)] += 1
    common = {name: shapes.most_common(1)[0][0] for name, shapes in seen.items()}
    return replace(encoder, input=replace(encoder.input, shapes=common)), []


def _shape(value: Any, column: str) -> tuple[int, ...]:
    try:
        return np.asarray(value).shape
    except ValueError:
        message = f"column {column!r} contains lists of different lengths"
        raise RowFaultError(WRONG_SHAPE, message, column) from None


def encode(row: Mapping[str, Any], encoder: Encoder) -> dict[str, Any]:
    """Return the masks of the row; its columns are added as they are."""
    for name, spec in encoder.extras.items():
        if row[name] is None:
            message = f"column {name!r} has no value"
            raise RowFaultError(WRONG_TYPE, message, name, fix="Fill it in, or remove the row.")
        shape, known = _shape(row[name], name), encoder.input.shapes[name]
        fixed = 1 if starts_in_time(spec) else 0
        if shape[fixed:] != known[fixed:]:
            message = f"column {name!r} has shape {list(shape)}; other rows have {list(known)}"
            fix = "Give all rows one shape; only the first axis of arrays may vary."
            raise RowFaultError(WRONG_SHAPE, message, name, fix)
    return {mask_of(name): np.ones(len(row[name]), np.int64) for name in _masked(encoder)}


def numbers_of(table: Table) -> list[str]:
    """Return the columns of numbers or arrays of them, in the order of the data."""
    return [name for name in table.columns if _is_numeric(table, name)]


def _is_numeric(table: Table, name: str) -> bool:
    kind = table.column_type(name)
    return is_array(kind) or is_number(kind)
