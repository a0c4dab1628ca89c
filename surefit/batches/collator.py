"""The Collator: makes a batch of any rows, for any training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.collate import (
    Array,
    Side,
    collate_columns,
    pad_stack,
    pad_token_id,
)
from surefit.batches.field import (
    SEQUENCES,
    Field,
    describe_misalignment,
    find_misalignment,
    starts_in_time,
    well_known_fields,
)
from surefit.errors import SurefitError

if TYPE_CHECKING:
    import torch


# torch has few operations for unsigned types; the next wider signed type holds every value.
_WIDER = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}


class CollateError(SurefitError, ValueError):
    """Rows that cannot be batched; the message names the row and the column."""


def _as_rows(features: Sequence[Any]) -> list[dict[str, Any]]:
    rows = [_as_row(row, place) for place, row in enumerate(features)]
    if not rows:
        raise CollateError(
            "Expected at least one row, found none.", "Pass a list with at least one row."
        )
    return rows


def _as_row(row: Any, place: int) -> dict[str, Any]:
    if hasattr(row, "as_py"):  # a row of a pyarrow Table
        row = row.as_py()
    if not isinstance(row, Mapping):
        raise CollateError(
            f"row {place}: expected a mapping of columns, found {type(row).__name__}.",
            "Pass a list of rows, each a dict such as {'input_ids': …, 'labels': …}.",
        )
    values = dict(row)
    if "label" in values and "labels" not in values:  # the name models take
        values["labels"] = values.pop("label")
    return values


def _as_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    for place, row in enumerate(rows):
        for name in names:
            if row.get(name) is None:
                held = "is empty (None)" if name in row else "is missing, but other rows have it"
                raise CollateError(
                    f"row {place}: column {name!r} {held}.",
                    "Give every row a value, or remove the column from all rows.",
                )
    return {name: [row[name] for row in rows] for name in names}


def _is_text(values: Sequence[Any]) -> bool:
    """Return whether a column holds text, or lists of text, which a tensor cannot hold."""
    leaf = _first_leaf(values)
    return isinstance(leaf, str | bytes) or (
        isinstance(leaf, np.ndarray) and leaf.dtype.kind in "US"
    )


def _first_leaf(values: Any) -> Any:
    for value in values:
        nested = isinstance(value, list | tuple) or _is_object_array(value)
        leaf = _first_leaf(value) if nested else value
        if leaf is not None:  # an empty list holds none
            return leaf
    return None


def _is_object_array(value: Any) -> bool:
    """Return whether this is an array of arrays, as pandas and NumPy represent ragged rows."""
    return isinstance(value, np.ndarray) and value.dtype == object and value.ndim > 0


def _as_arrays(name: str, values: Sequence[Any]) -> list[Array]:
    arrays = _with_equal_rank([_as_array(name, row, value) for row, value in enumerate(values)])
    dtype = _common_dtype(arrays)
    for row, array in enumerate(arrays):
        if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
            raise CollateError(
                f"row {row}: column {name!r} holds {array.max()}, more than int64 can hold.",
                "Convert the values to smaller numbers or to text, or remove the column.",
            )
    return [array.astype(dtype, copy=False) for array in arrays]


def _with_equal_rank(arrays: Sequence[Array]) -> list[Array]:
    """Give empty arrays as many axes as the others have: `[]` does not show how many."""
    rank = max(array.ndim for array in arrays)
    return [
        array if array.size else array.reshape(array.shape + (0,) * (rank - array.ndim))
        for array in arrays
    ]


def _common_dtype(arrays: Sequence[Array]) -> np.dtype[Any]:
    """Return the common dtype as in torch: integers take the precision of the floats beside them.

    >>> _common_dtype([np.array([1]), np.array([0.5], "float32"), np.array([])])
    dtype('float32')
    """
    dtypes = [array.dtype for array in arrays if array.size] or [arrays[0].dtype]
    dtypes = [np.dtype(_WIDER.get(dtype.name, dtype)) for dtype in dtypes]
    return np.result_type(*([dtype for dtype in dtypes if dtype.kind in "fc"] or dtypes))


def _as_array(name: str, row: int, value: Any) -> Array:
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu()
        if "bfloat16" in str(value.dtype):
            value = value.float()
        return np.asarray(value.numpy())
    if isinstance(value, np.ndarray | np.generic) and not _is_object_array(value):
        array = np.asarray(value)
    else:
        try:
            array = _pad_nested(value) if _is_ragged(value) else np.asarray(value)
        except ValueError:  # lists beside numbers
            array = np.empty(0, object)
        if array.dtype == np.float64:
            # torch reads Python floats as float32.
            array = array.astype(np.float32)
    if array.dtype.kind not in "biufc":
        raise CollateError(
            f"row {row}: column {name!r} holds a {type(value).__name__} that is neither text nor "
            f"an array of numbers: {str(value)[:60]}",
            "Convert the values to numbers, or remove the column.",
        )
    return array


def _pad_nested(value: Any) -> Array:
    """Return a list of lists of different lengths as one array, padded with 0.

    >>> _pad_nested([[1, 2], [3]]).tolist()
    [[1, 2], [3, 0]]
    """
    parts = _with_equal_rank(
        [_pad_nested(part) if _is_ragged(part) else np.asarray(part) for part in value]
    )
    shape = np.max([part.shape for part in parts], axis=0)
    return pad_stack(parts, shape, _common_dtype(parts), 0)


def _is_ragged(value: Any) -> bool:
    if _is_object_array(value):
        return True
    try:
        np.asarray(value)
    except ValueError:
        return True
    return False


class Collator:
    """Makes a batch of any rows: for `Trainer(data_collator=…)` and `DataLoader(collate_fn=…)`.

    Rows are mappings (dict, BatchEncoding, Arrow rows) of lists, arrays, tensors, numbers or
    text. A column with the lengths of `input_ids` (or `inputs_embeds`) is aligned with it and
    padded; columns of one fixed shape are stacked; text stays a list. No column is dropped and no
    input is modified. Without `fields`, integer `labels` must have the length of `input_ids`; for
    sequence-to-sequence pass `fields={"labels": Field(("target_time",), "int64", -100)}`.

    >>> batch = Collator()([{"input_ids": [5, 6], "labels": [5, 6]},
    ...                     {"input_ids": [7], "labels": [7]}])
    >>> batch["labels"].tolist()
    [[5, 6], [7, -100]]
    """

    def __init__(
        self,
        tokenizer: Any = None,
        fields: Mapping[str, Field] | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: Side = "right",
    ) -> None:
        if padding_side not in ("left", "right"):
            raise CollateError(
                f"padding_side is {padding_side!r}; expected 'left' or 'right'.",
                "Pass padding_side='right' or 'left'.",
            )
        self.tokenizer = tokenizer
        self.fields = dict(fields or {})
        self.pad_to_multiple_of = pad_to_multiple_of
        self.padding_side = padding_side

    def __call__(self, features: Any) -> dict[str, torch.Tensor | list[str]]:
        import torch

        rows = _as_rows(features)
        columns = _as_columns(rows)
        texts = {name: values for name, values in columns.items() if _is_text(values)}
        numeric = {name: v for name, v in columns.items() if name not in texts}
        brain_floats = {
            name
            for name, values in numeric.items()
            if name not in self.fields
            and all(isinstance(v, torch.Tensor) and v.dtype == torch.bfloat16 for v in values)
        }
        arrays = {name: _as_arrays(name, values) for name, values in numeric.items()}
        fields = {}
        if arrays:
            known = {**well_known_fields(pad_token_id(self.tokenizer)), **self.fields}
            fields = _infer_fields(arrays, known, set(self.fields))
            _refuse_misaligned(arrays, fields)
        batch = collate_columns(arrays, fields, self.pad_to_multiple_of, self.padding_side)
        tensors: dict[str, Any] = {name: torch.from_numpy(v) for name, v in batch.items()}
        for name in brain_floats:
            tensors[name] = tensors[name].to(torch.bfloat16)
        return {**tensors, **texts}


def _infer_fields(
    arrays: Mapping[str, Sequence[Array]], known: Mapping[str, Field], given: set[str]
) -> dict[str, Field]:
    lead = _find_lead(arrays, known)
    return {
        name: _infer_field(name, column, arrays.get(lead or ""), lead, known, given)
        for name, column in arrays.items()
    }


def _find_lead(arrays: Mapping[str, Sequence[Array]], known: Mapping[str, Field]) -> str | None:
    """Return sequence column that others are aligned with; None for rows of several sequences."""
    name = next((name for name in SEQUENCES if name in arrays), None)
    if name is None:
        return None
    rank = arrays[name][0].ndim
    if rank == 0:
        raise CollateError(
            f"row 0: column {name!r} is the single number {arrays[name][0]}; expected a sequence.",
            "Pass a list of rows; put a single row in a list: [row].",
        )
    return name if known[name].rank == rank and starts_in_time(known[name]) else None


def _infer_field(
    name: str,
    column: Sequence[Array],
    sequence: Sequence[Array] | None,
    lead: str | None,
    known: Mapping[str, Field],
    given: set[str],
) -> Field:
    ranks = {array.ndim for array in column}
    if len(ranks) > 1:
        other = next(place for place, array in enumerate(column) if array.ndim != column[0].ndim)
        raise CollateError(
            f"row {other}: column {name!r} has shape {list(column[other].shape)}, but row 0 has "
            f"{list(column[0].shape)}: all rows of a column need the same number of axes.",
            "Save every row of the column with the same number of axes.",
        )
    rank = ranks.pop()
    dtype = str(column[0].dtype)
    spec = known.get(name)
    pad: Any = 0
    if spec is not None and name in given:
        if spec.rank != rank:
            raise CollateError(
                f"row 0: column {name!r} has shape {list(column[0].shape)}; its Field has the "
                f"axes {list(spec.axes)}.",
                "Give the Field one name per axis of a row.",
            )
        return spec
    if spec is not None and _fits(spec, column):
        if spec.rank == rank:
            along = lead if spec.aligned_with == "input_ids" else spec.aligned_with
            return Field(spec.axes, spec.dtype, spec.pad, along)
        if column[0].dtype.kind in "iu":  # class labels of a row or a pixel are int64 too
            dtype, pad = spec.dtype, spec.pad
    if rank and sequence is not None and name != lead:
        matches = sum(len(a) == len(s) for a, s in zip(column, sequence, strict=True))
        fixed = len({array.shape for array in column}) == 1
        if matches == len(column) or (not fixed and matches * 2 > len(column)):
            rest = tuple(f"{name}.{axis}" for axis in range(1, rank))
            return Field(("time", *rest), dtype, pad, lead)
    return Field(tuple(f"{name}.{axis}" for axis in range(rank)), dtype, pad)


def _fits(spec: Field, column: Sequence[Array]) -> bool:
    """Return whether a column has the usual dtype of its name; float labels do not."""
    kinds = "biu" if "int" in spec.dtype else "biuf"
    return column[0].dtype.kind in kinds or not any(array.size for array in column)


def _refuse_misaligned(arrays: Mapping[str, Sequence[Array]], fields: Mapping[str, Field]) -> None:
    for row in range(len(next(iter(arrays.values())))):
        lengths = {name: len(column[row]) for name, column in arrays.items() if column[row].ndim}
        fault = find_misalignment(lengths, fields)
        if fault is not None:
            raise CollateError(
                f"row {row}: {describe_misalignment(*fault)}.",
                "Create both from the same tokens; copying the column another way does not help. "
                "For a column of another length, pass fields={...: Field(...)}.",
            )
    embeds = arrays.get("inputs_embeds")
    if embeds is not None and len({array.shape[1:] for array in embeds}) > 1:
        row = next(i for i, array in enumerate(embeds) if array.shape[1:] != embeds[0].shape[1:])
        raise CollateError(
            f"row {row}: 'inputs_embeds' has feature size {list(embeds[row].shape[1:])}, but row 0 "
            f"has {list(embeds[0].shape[1:])}: the feature size cannot be padded.",
            "Compute the features of every row with the same feature size.",
        )
