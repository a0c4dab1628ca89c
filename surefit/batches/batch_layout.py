"""How the rows of a batch lie in its tensors: padded one below the other, or end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from surefit.batches.collate import Array, collate_columns, starts_in_time
from surefit.batches.field import IGNORED, SEQUENCES, Field

Learns = Literal["in_place", "from_before"]
"""Where the label of a token is predicted: at its position, or at the one before it."""


@dataclass(frozen=True)
class Layout:
    """Padded, or end to end in one long row; and whether learned positions are listed.

    End to end, `position_ids` begin anew with each row and `row_lengths` says where; models that
    keep rows apart by it (`kernels/varlen_attention.py`) need no padding and no mask.

    With `learns`, `learned_at` lists the flat positions whose output is compared with a label,
    and `learned` those labels. Listed here, they cost the device no question about its data.
    """

    end_to_end: bool = False
    learns: Learns | None = None


PADDED = Layout()


def arrange(
    columns: Mapping[str, Sequence[Array]], fields: Mapping[str, Field], layout: Layout = PADDED
) -> dict[str, Array | tuple[int, ...]]:
    """The columns of a batch, each a list with one array per row, as the batch's arrays.

    >>> ids = {"input_ids": Field(("time",), "int64"), "labels": Field(("time",), "int64", -100)}
    >>> rows = [np.array([5, 6, 7]), np.array([8, 9])]
    >>> end_to_end = Layout(end_to_end=True, learns="from_before")
    >>> batch = arrange({"input_ids": rows, "labels": rows}, ids, end_to_end)
    >>> batch["input_ids"].tolist(), batch["position_ids"].tolist(), batch["row_lengths"]
    ([[5, 6, 7, 8, 9]], [[0, 1, 2, 0, 1]], (3, 2))
    >>> batch["learned_at"].tolist(), batch["learned"].tolist()
    ([0, 1, 3], [6, 7, 9])
    """
    batch: dict[str, Array | tuple[int, ...]]
    starts: Array | None
    if layout.end_to_end:
        batch, starts = _end_to_end(columns, fields)
    else:
        batch, starts = {**collate_columns(columns, fields)}, None
    if layout.learns is not None:
        labels = np.asarray(batch["labels"])
        at = labels != IGNORED
        if layout.learns == "from_before":  # nothing comes before the first token of a row
            at[:, 0 if starts is None else starts] = False
        positions = at.ravel().nonzero()[0]
        batch["learned"] = labels.ravel()[positions]
        batch["learned_at"] = positions - 1 if layout.learns == "from_before" else positions
    return batch


def _end_to_end(
    columns: Mapping[str, Sequence[Array]], fields: Mapping[str, Field]
) -> tuple[dict[str, Array | tuple[int, ...]], Array]:
    """Columns that run along the sequence laid end to end, others stacked; where rows begin."""
    batch: dict[str, Array | tuple[int, ...]] = {}
    for name, arrays in columns.items():
        spec = fields[name]
        joined = np.concatenate(arrays)[None] if starts_in_time(spec) else np.array(arrays)
        batch[name] = joined.astype(spec.numpy_dtype, copy=False)
    lead = next(name for name in SEQUENCES if name in columns)
    lengths = np.fromiter((len(array) for array in columns[lead]), np.int64)
    starts = np.cumsum(lengths) - lengths
    batch["position_ids"] = (np.arange(lengths.sum()) - np.repeat(starts, lengths))[None]
    batch["row_lengths"] = tuple(lengths.tolist())
    return batch, starts
