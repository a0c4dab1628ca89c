"""Makes a batch of encoded rows by their Fields: padded, or padding-free (varlen)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from surefit.batches.branches import (
    LENGTHS,
    is_branched,
    share_prompts,
    split_branches,
    split_sequences,
)
from surefit.batches.field import (
    IGNORE_INDEX,
    SEQUENCES,
    Field,
    is_time,
    lead_column,
    starts_in_time,
)

Array = npt.NDArray[Any]
Side = Literal["left", "right"]


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


def collate(rows: Sequence[Mapping[str, Array]], fields: Mapping[str, Field]) -> dict[str, Array]:
    """Pad and stack encoded rows column by column; adds an attention mask from the lengths.

    >>> ids = Field(("time",), "int64", pad=9)
    >>> rows = [{"input_ids": np.array([9, 5])}, {"input_ids": np.array([7])}]
    >>> {name: column.tolist() for name, column in collate(rows, {"input_ids": ids}).items()}
    {'input_ids': [[9, 5], [7, 9]], 'attention_mask': [[1, 1], [1, 0]]}
    """
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return collate_columns(columns, fields)


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
        batch[name] = pad_stack(arrays, shape, spec.batch_dtype, spec.pad, side)
    lead = lead_column(columns)
    if lead and "attention_mask" not in columns and is_masked(fields[lead]):
        place = fields[lead].time_axis or 0
        lengths = [array.shape[place] for array in columns[lead]]
        batch["attention_mask"] = _mask(lengths, batch[lead].shape[1 + place], padding_side)
    return batch


def is_masked(spec: Field) -> bool:
    """Return whether a batch has an attention mask along the time axis of this column."""
    return spec.masked and (spec.time_axis is not None or starts_in_time(spec))


def _mask(lengths: list[int], padded: int, side: Side) -> Array:
    """1 for the values of each row, 0 for its padding."""
    mask = np.zeros((len(lengths), padded), np.int64)
    for number, length in enumerate(lengths):
        start = padded - length if side == "left" else 0
        mask[number, start : start + length] = 1
    return mask


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
    """Return the tokenizer's pad token id, else its eos, else 0; masks do not depend on it."""
    for name in ("pad_token_id", "eos_token_id"):
        value = getattr(tokenizer, name, None)
        if value is not None:
            return int(value)
    return 0


Predicts = Literal["same_token", "next_token"]
"""Which token the output at a position predicts: the same one, or the next as causal models do."""


@dataclass(frozen=True)
class Layout:
    """Padded or padding-free (varlen), with or without a list of the labelled tokens.

    A padding-free batch is one row of all tokens: `position_ids` restart at 0 for each row of the
    data, and `row_lengths` has their lengths. `speed/varlen_attention.py` attends within each
    row, so the batch needs neither padding nor a mask.

    With `body_only`, the columns stay padded for the head and the loss, and `kept_positions` lists
    the flat positions that the attention mask keeps, which are concatenated for the model's
    body. `row_steps` has their places in their rows if a mask has gaps.

    With `predicts`, `labelled_positions` lists the flat positions of the logits that the loss
    reads, and `labelled_targets` the labels. Listing them on the CPU avoids a device sync. Where
    rows are two sequences each, `labelled_rows` has the sequence of each labelled token.
    """

    padding_free: bool = False
    predicts: Predicts | None = None
    body_only: bool = False
    shares_prompt: bool = False
    """Whether two answers to a prompt share it, and do not see each other; else they are rows of
    their own."""


PADDED = Layout()

PADDING_FREE: Final = "padding-free"


def arrange(
    columns: Mapping[str, Sequence[Array]], fields: Mapping[str, Field], layout: Layout = PADDED
) -> dict[str, Array | tuple[int, ...]]:
    """Collate columns, each a list with one array per row, in the layout.

    >>> ids = {"input_ids": Field(("time",), "int64"), "labels": Field(("time",), "int64", -100)}
    >>> rows = [np.array([5, 6, 7]), np.array([8, 9])]
    >>> padding_free = Layout(padding_free=True, predicts="next_token")
    >>> batch = arrange({"input_ids": rows, "labels": rows}, ids, padding_free)
    >>> batch["input_ids"].tolist(), batch["position_ids"].tolist(), batch["row_lengths"]
    ([[5, 6, 7, 8, 9]], [[0, 1, 2, 0, 1]], (3, 2))
    >>> batch["labelled_positions"].tolist(), batch["labelled_targets"].tolist()
    ([0, 1, 3], [6, 7, 9])
    """
    batch: dict[str, Array | tuple[int, ...]]
    starts: Array | None
    branched = is_branched(columns)
    if branched and layout.shares_prompt:
        return share_prompts(columns, fields)
    if branched:
        columns, fields = split_branches(columns, fields)
    if LENGTHS in columns:
        columns, fields = split_sequences(columns, fields)
    if layout.padding_free and not layout.body_only:
        batch, starts = _concatenate_rows(columns, fields)
    else:
        batch, starts = {**collate_columns(columns, fields)}, None
        if layout.padding_free:
            batch |= list_kept(np.asarray(batch["attention_mask"]))
    if layout.predicts is not None:
        labels = np.asarray(batch["labels"])
        at = labels != IGNORE_INDEX
        if layout.predicts == "next_token":  # no position predicts the first token of a row
            at[:, 0 if starts is None else starts] = False
        positions = at.ravel().nonzero()[0]
        batch["labelled_targets"] = labels.ravel()[positions]
        batch["labelled_positions"] = (
            positions - 1 if layout.predicts == "next_token" else positions
        )
        if branched:
            batch["labelled_rows"] = (
                positions // labels.shape[1]
                if starts is None
                else starts.searchsorted(positions, "right") - 1
            )
    return batch


def _concatenate_rows(
    columns: Mapping[str, Sequence[Array]], fields: Mapping[str, Field]
) -> tuple[dict[str, Array | tuple[int, ...]], Array]:
    """Concatenate the rows of columns with a time axis, stack others; returns where rows start."""
    batch: dict[str, Array | tuple[int, ...]] = {}
    for name, arrays in columns.items():
        spec = fields[name]
        values = np.concatenate(arrays)[None] if starts_in_time(spec) else np.array(arrays)
        batch[name] = values.astype(spec.batch_dtype, copy=False)
    lead = next(name for name in SEQUENCES if name in columns)
    lengths = np.fromiter((len(array) for array in columns[lead]), np.int64)
    starts = np.cumsum(lengths) - lengths
    batch["position_ids"] = (np.arange(lengths.sum()) - np.repeat(starts, lengths))[None]
    batch["row_lengths"] = tuple(lengths.tolist())
    return batch, starts


def list_kept(mask: Array) -> dict[str, Array | tuple[int, ...]]:
    """Return the positions that an attention mask (B, L) keeps, and how many in each row.

    >>> kept = list_kept(np.array([[1, 1, 0], [1, 0, 1]]))
    >>> kept["kept_positions"].tolist(), kept["row_lengths"], kept["row_steps"]
    ([0, 1, 3, 5], (2, 2), (0, 1, 0, 2))
    """
    kept = mask != 0
    positions, lengths = kept.ravel().nonzero()[0], kept.sum(1)
    listed: dict[str, Array | tuple[int, ...]] = {
        "kept_positions": positions,
        "row_lengths": tuple(lengths.tolist()),
    }
    if not kept[np.arange(kept.shape[1]) < lengths[:, None]].all():
        listed["row_steps"] = tuple((positions % kept.shape[1]).tolist())
    return listed
