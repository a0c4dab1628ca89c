"""A Field: how one encoded column becomes a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from surefit.errors import UsageError

IGNORE_INDEX = -100
"""The label of positions that the loss skips, as in torch."""
OWN = "surefit."
"""How names in a batch start that are surefit's own and no columns."""
NUM_TARGETS = f"{OWN}num_targets"
"""The number of targets of a batch, in the batch."""
NUM_ROWS = f"{OWN}num_rows"
"""The number of rows of a batch that a user's `collate_fn` made, in the batch."""
PER_ROW = f"{OWN}targets_per_row"
"""Targets per row in the whole step, or in all rows of an evaluation; in the batch. A loss of rows
that is multiplied by it may be divided by targets."""


@dataclass(frozen=True)
class Field:
    """The axes of one row, its dtype, its pad value, and the column it is aligned with.

    `axes` names the axes of a single row, without the batch axis; a scalar has none. Axes of the
    same name have the same length in a batch. `aligned_with` names a column that must have the same
    length in every row: a row where the lengths differ is an error and is not padded.

    >>> Field(axes=("time",), dtype="int64", pad=-100, aligned_with="input_ids").rank
    1
    """

    axes: tuple[str, ...] = ()
    dtype: str = "float32"
    pad: float | int | bool = 0
    aligned_with: str | None = None
    masked: bool = True
    """Whether a batch has an attention mask, made from the lengths of this column."""

    def __post_init__(self) -> None:
        """Refuse axes that are sizes, or one name without a tuple."""
        if isinstance(self.axes, tuple | list) and all(isinstance(a, str) for a in self.axes):
            return
        raise UsageError(
            f"Field has the axes {self.axes!r}; expected names, one per axis of a row without the "
            "batch: a size is not given.",
            "Write surefit.Field(('time', 'width')) for rows [time, width], surefit.Field(()) for "
            "a number; 'time' is the axis along which rows differ in length.",
        )

    @cached_property
    def rank(self) -> int:
        """The number of axes of one row."""
        return len(self.axes)

    @cached_property
    def time_axis(self) -> int | None:
        """Which of the axes is the time, along which rows have a length; None for none."""
        return self.axes.index("time") if "time" in self.axes else None

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype on disk."""
        return np.dtype(self.dtype)

    @cached_property
    def batch_dtype(self) -> np.dtype[Any]:
        """The dtype in a batch: classes are int64, which the losses of torch need."""
        is_class = self.pad == IGNORE_INDEX and self.numpy_dtype.kind == "i"
        return np.dtype(np.int64) if is_class else self.numpy_dtype


def is_time(axis: str) -> bool:
    """Whether an axis is a time axis, which `padding_side` and `pad_to_multiple_of` apply to."""
    return axis.endswith("time")


def starts_in_time(spec: Field) -> bool:
    """Return whether the first axis of a column is a time axis."""
    return bool(spec.axes) and is_time(spec.axes[0])


def _time(dtype: str, pad: float | int, aligned_with: str | None = None) -> Field:
    return Field(("time",), dtype, pad, aligned_with)


SEQUENCES: tuple[str, ...] = ("input_ids", "inputs_embeds")
"""Columns that hold the sequence; other columns are aligned with the first one present."""
RECORDED = ("input_values", "input_features")
"""Columns that hold audio, as transformers calls them: a sequence where it has a time axis."""


def lead_column(columns: Iterable[str]) -> str | None:
    """Return the column that the length and the attention mask of a row are made from."""
    names = {*columns}
    return next((name for name in (*SEQUENCES, *RECORDED) if name in names), None)


def well_known_fields(pad_token_id: int = 0) -> dict[str, Field]:
    """Fields of the column names that transformers defines."""
    return {
        "input_ids": _time("int64", pad_token_id),
        "inputs_embeds": Field(("time", "width"), "float32", 0.0),
        "attention_mask": _time("int64", 0, "input_ids"),
        "token_type_ids": _time("int64", 0, "input_ids"),
        "position_ids": _time("int64", 0, "input_ids"),
        "special_tokens_mask": _time("int64", 1, "input_ids"),
        "labels": _time("int64", IGNORE_INDEX, "input_ids"),
        "decoder_input_ids": Field(("target_time",), "int64", pad_token_id),
        "decoder_attention_mask": Field(("target_time",), "int64", 0, "decoder_input_ids"),
    }


def describe_misalignment(column: str, found: int, other: str, expected: int) -> str:
    """Return the message about two aligned columns of different lengths."""
    return (
        f"column {column!r} has length {found}, but {other!r}, which it is aligned with, "
        f"has length {expected}"
    )


def find_misalignment(
    lengths: Mapping[str, int], fields: Mapping[str, Field]
) -> tuple[str, int, str, int] | None:
    """Return the first column of a row whose length differs from the column it is aligned with.

    With the length, the other column and its length, as `describe_misalignment` takes them.
    """
    for name, spec in fields.items():
        other = spec.aligned_with or ""
        if name in lengths and lengths.get(other, lengths[name]) != lengths[name]:
            return name, lengths[name], other, lengths[other]
    return None
