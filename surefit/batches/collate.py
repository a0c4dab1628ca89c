"""Pads and stacks encoded rows into one batch, column by column, according to their Fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from surefit.batches.field import Field, lead_column

Array = npt.NDArray[Any]
Side = Literal["left", "right"]


def is_time(axis: str) -> bool:
    """Whether an axis is a time axis, which `padding_side` and `pad_to_multiple_of` apply to."""
    return axis.endswith("time")


def pad_stack(
    arrays: Sequence[Array], shape: Sequence[int], dtype: Any, pad: Any, side: Side = "right"
) -> Array:
    """Copy arrays of one rank into a new array of `shape` per row, filled with `pad`.

    The first axis is aligned to `side`; further axes always start at 0.

    >>> pad_stack([np.array([1, 2]), np.array([3])], (3,), "int64", 0).tolist()
    [[1, 2, 0], [3, 0, 0]]
    >>> pad_stack([np.array([1, 2]), np.array([3])], (3,), "int64", 0, "left").tolist()
    [[0, 1, 2], [0, 0, 3]]
    """
    if len(shape) == 0:
        return np.array(arrays, dtype)
    batch = np.full((len(arrays), *shape), pad, dtype)
    for number, array in enumerate(arrays):
        length = len(array)
        start = shape[0] - length if side == "left" else 0
        if array.ndim == 1:  # the most common case
            batch[number, start : start + length] = array
        else:
            rest = tuple(slice(0, size) for size in array.shape[1:])
            batch[number][(slice(start, start + length), *rest)] = array
    return batch


def collate(
    rows: Sequence[Mapping[str, Array]],
    fields: Mapping[str, Field],
    *,
    pad_to_multiple_of: int | None = None,
    padding_side: Side = "right",
) -> dict[str, Array]:
    """Pad and stack encoded rows column by column; adds an attention mask from the lengths.

    >>> ids = Field(("time",), "int64", pad=9)
    >>> rows = [{"input_ids": np.array([9, 5])}, {"input_ids": np.array([7])}]
    >>> {name: column.tolist() for name, column in collate(rows, {"input_ids": ids}).items()}
    {'input_ids': [[9, 5], [7, 9]], 'attention_mask': [[1, 1], [1, 0]]}
    """
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return collate_columns(columns, fields, pad_to_multiple_of, padding_side)


def collate_columns(
    columns: Mapping[str, Sequence[Array]],
    fields: Mapping[str, Field],
    pad_to_multiple_of: int | None = None,
    padding_side: Side = "right",
) -> dict[str, Array]:
    """`collate` for rows in columns, as a store returns them."""
    sizes = _axis_sizes(columns, fields, pad_to_multiple_of)
    batch = {}
    for name, arrays in columns.items():
        spec = fields[name]
        shape = [sizes[axis] for axis in spec.axes]
        side = padding_side if starts_in_time(spec) else "right"
        batch[name] = pad_stack(arrays, shape, spec.numpy_dtype, spec.pad, side)
    lead = lead_column(columns)
    if lead and "attention_mask" not in columns and is_masked(fields[lead]):
        place = fields[lead].time_axis or 0
        lengths = [array.shape[place] for array in columns[lead]]
        batch["attention_mask"] = _mask(lengths, batch[lead].shape[1 + place], padding_side)
    return batch


def is_masked(spec: Field) -> bool:
    """Whether a batch has an attention mask along the time axis of this column."""
    return spec.masked and (spec.time_axis is not None or starts_in_time(spec))


def _mask(lengths: list[int], padded: int, side: Side) -> Array:
    """1 for the values of each row, 0 for its padding."""
    mask = np.zeros((len(lengths), padded), np.int64)
    for number, length in enumerate(lengths):
        start = padded - length if side == "left" else 0
        mask[number, start : start + length] = 1
    return mask


def starts_in_time(spec: Field) -> bool:
    """Whether the first axis of a column is a time axis."""
    return bool(spec.axes) and is_time(spec.axes[0])


def _axis_sizes(
    columns: Mapping[str, Sequence[Array]], fields: Mapping[str, Field], multiple: int | None
) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, arrays in columns.items():
        for place, axis in enumerate(fields[name].axes):
            longest = max([array.shape[place] for array in arrays])
            sizes[axis] = max(sizes.get(axis, 0), longest)
    if multiple:
        for axis in sizes:
            if is_time(axis):
                sizes[axis] = -(-sizes[axis] // multiple) * multiple
    return sizes


def pad_token_id(tokenizer: Any) -> int:
    """The tokenizer's pad token id, else its eos, else 0; masks do not depend on it."""
    for name in ("pad_token_id", "eos_token_id"):
        value = getattr(tokenizer, name, None)
        if value is not None:
            return int(value)
    return 0
