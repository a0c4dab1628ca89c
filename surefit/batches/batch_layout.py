"""The layout of a batch: padded, or padding-free (varlen) with its rows concatenated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from surefit.batches.collate import Array, collate_columns, starts_in_time
from surefit.batches.field import IGNORE_INDEX, SEQUENCES, Field

Predicts = Literal["same_token", "next_token"]
"""Which token the output at a position predicts: the same one, or the next as causal models do."""


@dataclass(frozen=True)
class Layout:
    """Padded or padding-free (varlen), with or without a list of the labelled tokens.

    A padding-free batch is one row of all tokens: `position_ids` restart at 0 for each row of the
    data, and `row_lengths` has their lengths. `kernels/varlen_attention.py` attends within each
    row, so the batch needs neither padding nor a mask.

    With `body_only`, the columns stay padded for the head and the loss, and `kept_positions` lists
    the flat positions that the attention mask keeps. `kernels/packed_body.py` concatenates them for
    the model's body. `row_steps` has their places in their rows if a mask has gaps.

    With `predicts`, `labelled_positions` lists the flat positions of the logits that the loss
    reads, and `labelled_targets` the labels. Listing them on the CPU avoids a device sync.
    """

    padding_free: bool = False
    predicts: Predicts | None = None
    body_only: bool = False


PADDED = Layout()

PADDING_FREE = "padding-free"


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
    return batch


def _concatenate_rows(
    columns: Mapping[str, Sequence[Array]], fields: Mapping[str, Field]
) -> tuple[dict[str, Array | tuple[int, ...]], Array]:
    """Concatenate the rows of columns with a time axis, stack others; returns where rows start."""
    batch: dict[str, Array | tuple[int, ...]] = {}
    for name, arrays in columns.items():
        spec = fields[name]
        values = np.concatenate(arrays)[None] if starts_in_time(spec) else np.array(arrays)
        batch[name] = values.astype(spec.numpy_dtype, copy=False)
    lead = next(name for name in SEQUENCES if name in columns)
    lengths = np.fromiter((len(array) for array in columns[lead]), np.int64)
    starts = np.cumsum(lengths) - lengths
    batch["position_ids"] = (np.arange(lengths.sum()) - np.repeat(starts, lengths))[None]
    batch["row_lengths"] = tuple(lengths.tolist())
    return batch, starts


def list_kept(mask: Array) -> dict[str, Array | tuple[int, ...]]:
    """The positions that an attention mask (B, L) keeps, and how many in each row.

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
