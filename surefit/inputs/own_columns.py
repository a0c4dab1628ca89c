"""Columns of numbers as they are, for a module of the user's own with a `loss_fn`.

Nothing is masked, reshaped, renamed or scaled: `forward` and `loss_fn` get the columns of numbers
under the names that the data has, integers as integers. The columns are extra columns of the
Encoder, so rows to predict for need only those that `forward` reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from surefit.batches.collate import pad_stack
from surefit.batches.field import Field, is_time, lead_column, well_known_fields
from surefit.data.column_types import is_array, is_number, list_axes
from surefit.data.data_rules import MISSING_COLUMN, WRONG_SHAPE, WRONG_TYPE
from surefit.data.roles import ROLES, get_role
from surefit.data.row_arrays import Axis, row_shape
from surefit.data.table import Table
from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.encoder import Encoder
from surefit.inputs.model_hints import Hints, RunsOn

Array = npt.NDArray[Any]
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

ONE_SHAPE = (
    "Give all rows one shape. An axis may vary if its size differs in a tenth of the rows, or if "
    "you give it a name that ends with 'time' (fields.COLUMN.axes)."
)
LOOKED_AT = 1000
"""Rows whose shapes are compared; all rows must have the most common one."""


def suits(table: Table, hints: Hints) -> bool:
    """Return whether a module can be called with the columns of numbers.

    Where there are other columns, such as texts, it has to name those of numbers.
    """
    required, arguments = hints.required, hints.arguments
    if required is None:
        return False
    known = _names_in_batch(table)
    if not has_numbers(table) and not (required and known.issuperset(required)):
        return False
    asks_for_other = any(name in NAMES_IN_BATCHES and name not in known for name in arguments)
    return not asks_for_other and can_call(table, hints)


def has_numbers(table: Table) -> bool:
    """Return whether all columns are numbers or arrays of them."""
    return all(_is_numeric(table, name) for name in table.columns)


def can_call(table: Table, hints: Hints) -> bool:
    """Whether every argument has the name of a column, or the only one gets the only input."""
    required = hints.required or ()
    unknown = [name for name in required if name not in _names_in_batch(table)]
    return not unknown or (
        len(unknown) == len(required) == 1 and only_input(table, hints) is not None
    )


def check_call(table: Table, hints: Hints) -> None:
    """Refuse a module whose arguments are not named after the columns."""
    if hints.required is None or can_call(table, hints):
        return
    numbers = ", ".join(numbers_of(table))
    raise MISSING_COLUMN.error(
        f"forward requires {', '.join(hints.required)}; the columns of numbers are {numbers}.",
        fix="Name the arguments of forward after the columns, or store the columns that one "
        "argument reads as one array.",
        file=table.sources[0].file,
    )


def only_input(table: Table, hints: Hints) -> str | None:
    """Return the only column, or the only one whose name is not that of a label, or of these the
    only one that the module runs on; None if there are more.

    A module with one argument of another name reads it.
    """
    labels = get_role("label").names
    numbers = numbers_of(table)
    inputs = [name for name in numbers if name.lower() not in labels] or numbers
    if len(inputs) > 1 and hints.runs_on is not None:
        inputs = [name for name in inputs if _runs_on(table, name, hints.runs_on)]
    return inputs[0] if len(inputs) == 1 else None


def _runs_on(table: Table, name: str, tries: RunsOn) -> bool:
    shape = [axis.usual for axis in row_shape(table, name).axes]
    is_integer = pa.types.is_integer(list_axes(table.column_type(name))[1])
    return tries({name: shape}, {name} if is_integer else ())


def _names_in_batch(table: Table) -> set[str]:
    """Return the columns, and the masks that they may have."""
    arrays = [name for name in table.columns if is_array(table.column_type(name))]
    made = {"attention_mask"} if lead_column(arrays) else set()
    return {*numbers_of(table), *map(mask_of, arrays), *made}


def own_fields(
    table: Table, asked: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Field], list[Finding]]:
    """Return how each column of numbers becomes a tensor.

    Rows may differ in the size of any axis that varies as lengths do; its name ends with `time`.
    `encode` refuses rows that differ in others. `asked` is what the user wants of a Field.
    """
    made: dict[str, Field] = {}
    found = []
    names = numbers_of(table)
    for name in {*asked} - {*names}:
        raise UsageError(
            f"fields has {name!r}, which is no column of numbers: {', '.join(names)}.",
            "Name a column.",
        )
    lead = lead_column(table.columns)
    for name in names:
        sizes, value = row_shape(table, name).axes, list_axes(table.column_type(name))[1]
        ragged = [
            size.is_ragged or (not place and name == lead) for place, size in enumerate(sizes)
        ]
        is_integer, is_boolean = pa.types.is_integer(value), pa.types.is_boolean(value)
        spec = Field(
            tuple(map(_axis_name, repeat(name), count(), ragged)),
            "bool" if is_boolean else "int64" if is_integer else "float32",
        )
        usual = well_known_fields().get(name) if lead is not None and any(ragged) else None
        if usual is not None and (usual.rank, usual.dtype) == (spec.rank, spec.dtype):
            spec = usual
        made[name] = _as_asked(spec, asked.get(name, {}), name)
        found.append(_padded(name, made[name], sizes, lead))
    return made, [finding for finding in found if finding is not None]


def _axis_name(column: str, place: int, varies: bool) -> str:
    """Return the name of an axis of a column, which ends with `time` where its size varies."""
    if not varies:
        return f"{column}.{place}"
    return f"{column}.{place}.time" if place else f"{column}.time"


def _as_asked(spec: Field, asked: Mapping[str, Any], column: str) -> Field:
    """Return the Field with what the user wants of it; a varying axis may get another name."""
    made = replace(spec, **asked)
    if made.rank != spec.rank:
        raise UsageError(
            f"fields.{column}.axes names {made.rank} axes; rows of the column have {spec.rank}.",
            "Name each axis of a row, without the batch; names of axes that vary end with 'time'.",
        )
    return made


def _padded(name: str, spec: Field, sizes: Sequence[Axis], lead: str | None) -> Finding | None:
    """Return the warning that rows of a column are padded; None for rows of one shape."""
    varying = [place for place, size in enumerate(sizes) if size.is_ragged]
    if not varying:
        return None
    axes = " and ".join(f"{sizes[place]} values along axis {place}" for place in varying)
    if varying == [0]:
        axes = f"{sizes[0]} values along their first axis"
    mask = "attention_mask" if lead is not None else mask_of(name)
    made = f"{mask!r} is 1 for values, 0 for padding" if spec.masked else "no mask is made"
    message = (
        f"rows of column {name!r} have {axes}. In a batch, shorter ones are padded with "
        f"{spec.pad}; {made}."
    )
    return PADDED_COLUMN.finding(message, column=name)


def mask_of(column: str) -> str:
    """Return the name of the mask of a column whose rows have different lengths."""
    return f"{column}_mask"


def varying_axes(spec: Field) -> list[int]:
    """Return the axes along which rows of a column may differ in size."""
    return [place for place, axis in enumerate(spec.axes) if is_time(axis)]


def masks_of(encoder: Encoder) -> dict[str, str]:
    """Return the columns whose rows are padded, by the name of the mask that is made for each.

    Batches have a mask of one axis for the leading sequence without this.
    """
    extras = encoder.extras
    lead = lead_column(extras)
    made = {}
    for name, spec in extras.items():
        varying = varying_axes(spec)
        mask = "attention_mask" if name == lead else mask_of(name)
        by_lead = name == lead and len(varying) == 1
        if varying and spec.masked and spec.aligned_with is None and not by_lead:
            made[mask] = name
    return {mask: name for mask, name in made.items() if mask not in extras}


def fields_of(encoder: Encoder) -> dict[str, Field]:
    """Return the Encoder's extra columns, which are those of the data, and their masks.

    A mask has the axes along which its column varies.
    """
    extras = encoder.extras
    masks = {
        mask: Field(tuple(filter(is_time, extras[name].axes)), "int64", 0)
        for mask, name in masks_of(encoder).items()
    }
    return {**extras, **masks}


def fit(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> tuple[Encoder, list[Finding]]:
    """Return the most common size of the axes of each column that do not vary."""
    seen = {name: Counter[tuple[int, ...]]() for name in encoder.extras}
    for row in islice(rows, LOOKED_AT):
        for name, shapes in seen.items():
            if row[name] is not None:
                array, _ = _as_array(row[name], encoder.extras[name], name)
                shapes[array.shape] += bool(array.size or not array.ndim)
    common = {name: shapes.most_common(1)[0][0] for name, shapes in seen.items() if shapes}
    return replace(encoder, input=replace(encoder.input, shapes=common)), []


def _as_array(value: Any, spec: Field, column: str) -> tuple[Array, Array]:
    """Return the value of a row as an array, and where it has values.

    Lists of different lengths within the row are padded as rows are.
    """
    try:
        array = np.asarray(value)
        return array, np.ones(array.shape, bool)
    except ValueError:
        inner = replace(spec, axes=spec.axes[1:])
    parts = [_as_array(part, inner, column) for part in value]
    kinds = [array.dtype for array, _ in parts if array.size]
    blank = np.zeros((0,) * inner.rank)
    parts = [each if each[0].size else (blank, blank) for each in parts]
    if any(array.ndim != inner.rank for array, _ in parts):
        message = f"column {column!r} has values and lists side by side"
        raise RowFaultError(WRONG_SHAPE, message, column)
    sizes = (len(parts), *np.max([array.shape for array, _ in parts], axis=0))
    arrays, filled = zip(*parts, strict=True)
    return (
        pad_stack(arrays, sizes[1:], np.result_type(*kinds), spec.pad),
        pad_stack(filled, sizes[1:], bool, False),
    )


def encode(row: Mapping[str, Any], encoder: Encoder) -> dict[str, Any]:
    """Return the columns of a row, and their masks."""
    made: dict[str, Any] = {}
    masks = {name: mask for mask, name in masks_of(encoder).items()}
    for name, spec in encoder.extras.items():
        if row[name] is None:
            message = f"column {name!r} has no value"
            raise RowFaultError(WRONG_TYPE, message, name, fix="Fill it in, or remove the row.")
        array, filled = _as_array(row[name], spec, name)
        known, varying = encoder.input.shapes.get(name, array.shape), varying_axes(spec)
        fixed = tuple(place for place in range(len(known)) if place not in varying)
        if not array.size and varying and array.ndim < len(known):  # as an image without boxes
            array = array.reshape([known[n] if n in fixed else 0 for n in range(len(known))])
            filled = array.astype(bool)
        if array.ndim != len(known) or any(array.shape[n] != known[n] for n in fixed):
            message = (
                f"column {name!r} has shape {list(array.shape)}; other rows have {list(known)}"
            )
            raise RowFaultError(WRONG_SHAPE, message, name, ONE_SHAPE)
        if (filled.any(fixed) != filled.all(fixed)).any():
            message = f"column {name!r} contains lists of different lengths"
            raise RowFaultError(WRONG_SHAPE, message, name, ONE_SHAPE)
        made[name] = array
        if name in masks:
            made[masks[name]] = filled.any(fixed).astype(np.int64)
    return made


def numbers_of(table: Table) -> list[str]:
    """Return the columns of numbers or arrays of them, in the order of the data."""
    return [name for name in table.columns if _is_numeric(table, name)]


def _is_numeric(table: Table, name: str) -> bool:
    kind = table.column_type(name)
    return is_array(kind) or is_number(kind)
