"""The columns of an encoded row in the dtypes of their Fields; its length and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import (
    IGNORE_INDEX,
    RECORDED,
    Field,
    describe_misalignment,
    find_misalignment,
    lead_column,
)
from surefit.data.data_rules import (
    MISALIGNED_COLUMNS,
    MISSING_COLUMN,
    NOT_FINITE,
    WRONG_SHAPE,
    WRONG_TYPE,
)
from surefit.inputs.encoded_row import RowFaultError


def row_length(columns: Mapping[str, Any], fields: Mapping[str, Field]) -> int:
    """Return the sequence length of a row; 1 if it has no sequence."""
    lead = lead_column(columns)
    if lead in RECORDED:
        place = fields[lead].time_axis
        return 1 if place is None else int(columns[lead].shape[place])
    return len(columns[lead]) if lead is not None and columns[lead].ndim else 1


def second_sequence(fields: Mapping[str, Field]) -> str | None:
    """Return the column of the target sequence, for rows with a source and a target."""
    return next((n for n, spec in fields.items() if spec.axes[:1] == ("target_time",)), None)


def cast_columns(
    columns: Mapping[str, Any],
    fields: Mapping[str, Field],
    column_of: Callable[[str], str] = str,
) -> dict[str, npt.NDArray[Any]]:
    """Return the row's columns in the dtypes of their Fields; a RowFaultError if one does not fit.

    `column_of` returns the user's name of a column, for messages.
    """
    cast: dict[str, npt.NDArray[Any]] = {}
    for name, spec in fields.items():
        given = columns.get(name)
        if (
            isinstance(given, np.ndarray)
            and given.dtype == spec.numpy_dtype
            and given.ndim == spec.rank
            and given.dtype.kind == "i"
        ):
            cast[name] = given  # tokens: the common case
            continue
        if type(given) is int and not spec.rank and spec.dtype == "int64":
            cast[name] = np.array(given)  # int64, or uint64 or object for what does not fit
            if cast[name].dtype == spec.numpy_dtype:
                continue
        shown = f"column {column_of(name)!r}"
        if name not in columns:
            raise RowFaultError(MISSING_COLUMN, f"{shown} is missing", name)
        cast[name] = _cast(_as_array(given, spec, name, shown), spec, name, shown)
    lengths = {name: len(value) for name, value in cast.items() if value.ndim}
    fault = find_misalignment(lengths, fields)
    if fault is not None:
        name, found, other, expected = fault
        message = describe_misalignment(column_of(name), found, column_of(other), expected)
        raise RowFaultError(MISALIGNED_COLUMNS, message, name)
    return cast


def _as_array(given: Any, spec: Field, name: str, shown: str) -> npt.NDArray[Any]:
    """Return the value as an array of numbers with the axes of its Field."""
    try:
        value = np.asarray(given)
    except ValueError:
        what = f"{shown} contains lists of different lengths"
        raise RowFaultError(WRONG_SHAPE, what, name) from None
    if value.dtype.kind not in "biuf":
        what = f"{shown} contains {value.dtype} values; expected numbers"
        raise RowFaultError(WRONG_TYPE, what, name)
    if value.ndim != spec.rank:
        axes = ", ".join(spec.axes) or "a single value"
        what = f"{shown} has shape {list(value.shape)}; expected {spec.rank} axes ({axes})"
        raise RowFaultError(WRONG_SHAPE, what, name)
    return value


def _cast(value: npt.NDArray[Any], spec: Field, name: str, shown: str) -> npt.NDArray[Any]:
    """Return the array in the dtype of its Field, which must be able to hold every value."""
    with np.errstate(over="ignore"):
        narrow = value.astype(spec.numpy_dtype) if spec.numpy_dtype.kind == "f" else value
    if value.dtype.kind == "f" and not np.isfinite(narrow).all():
        place = [int(axis) for axis in np.argwhere(~np.isfinite(narrow))[0]]
        found = value[tuple(place)]
        tail = f", too large for {spec.dtype}" if np.isfinite(found) else ""
        raise RowFaultError(NOT_FINITE, f"{shown} contains {found} at {place}{tail}", name)
    if spec.numpy_dtype.kind in "iu" and value.dtype.kind == "f" and (value % 1).any():
        what = f"{shown} contains fractions; expected integers"
        raise RowFaultError(WRONG_TYPE, what, name)
    return narrow.astype(spec.numpy_dtype, copy=False)


def count_labelled(columns: Mapping[str, Any]) -> int:
    """Targets of a row: its labels that are not -100; 1 for a single label or none at all."""
    labels = columns.get("labels")
    if labels is None or labels.ndim == 0 or labels.dtype.kind == "f":
        return 1
    return int(np.count_nonzero(labels != IGNORE_INDEX))
