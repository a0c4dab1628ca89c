"""Rows to one batch of tensors: one collator, driven by Fields, for every kind of column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from surefit.batches.field import (
    SEQUENCES,
    Field,
    find_misalignment,
    well_known_fields,
)
from surefit.errors import SurefitError

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]
Side = Literal["left", "right"]

# torch has few operations for these; the next wider signed type holds every value.
_WIDER = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}


class CollateError(SurefitError, ValueError):
    """Rows that cannot become one batch; the message names the row and the column."""


def is_time(axis: str) -> bool:
    """Whether an axis runs along a sequence: padded on the chosen side and to the multiple."""
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
    batch = np.full((len(arrays), *shape), pad, dtype)
    for place, array in zip(batch, arrays, strict=True):
        if array.ndim == 0:
            place[...] = array
            continue
        start = shape[0] - len(array) if side == "left" else 0
        rest = tuple(slice(0, size) for size in array.shape[1:])
        place[(slice(start, start + len(array)), *rest)] = array
    return batch


def collate(
    rows: Sequence[Mapping[str, Array]],
    fields: Mapping[str, Field],
    *,
    pad_to_multiple_of: int | None = None,
    padding_side: Side = "right",
) -> dict[str, Array]:
    """Pad and stack encoded rows column by column; a missing attention mask is made by length.

    >>> ids = Field(("time",), "int64", pad=9)
    >>> rows = [{"input_ids": np.array([9, 5])}, {"input_ids": np.array([7])}]
    >>> {name: column.tolist() for name, column in collate(rows, {"input_ids": ids}).items()}
    {'input_ids': [[9, 5], [7, 9]], 'attention_mask': [[1, 1], [1, 0]]}
    """
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    sizes = _axis_sizes(columns, fields, pad_to_multiple_of)
    batch = {}
    for name, arrays in columns.items():
        spec = fields[name]
        shape = [sizes[axis] for axis in spec.axes]
        side = padding_side if spec.axes and is_time(spec.axes[0]) else "right"
        batch[name] = pad_stack(arrays, shape, spec.numpy_dtype, spec.pad, side)
    lead = next((name for name in SEQUENCES if name in columns), None)
    if lead is not None and "attention_mask" not in columns:
        ones = [np.ones(len(array), np.int64) for array in columns[lead]]
        batch["attention_mask"] = pad_stack(ones, batch[lead].shape[1:2], np.int64, 0, padding_side)
    return batch


def _axis_sizes(
    columns: Mapping[str, Sequence[Array]], fields: Mapping[str, Field], multiple: int | None
) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, arrays in columns.items():
        for place, axis in enumerate(fields[name].axes):
            longest = max(array.shape[place] for array in arrays)
            sizes[axis] = max(sizes.get(axis, 0), longest)
    if multiple:
        for axis in sizes:
            if is_time(axis):
                sizes[axis] = -(-sizes[axis] // multiple) * multiple
    return sizes


class Collator:
    """Makes a batch of any rows: for `Trainer(data_collator=…)` and `DataLoader(collate_fn=…)`.

    Rows are mappings (dict, BatchEncoding, Arrow rows) of lists, arrays, tensors, numbers or
    text. Columns run along `input_ids` (or `inputs_embeds`) where their lengths say so and are
    padded with it; columns of one fixed shape are stacked; text is listed. Nothing is dropped
    and no input is changed. Without `fields`, `labels` of whole numbers must be as long as
    `input_ids`; for sequence-to-sequence give `fields={"labels": Field(("target_time",),
    "int64", -100)}`.

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
        columns = _columns(rows)
        texts = {name: values for name, values in columns.items() if _is_text(values)}
        numeric = {name: v for name, v in columns.items() if name not in texts}
        brain_floats = {
            name
            for name, values in numeric.items()
            if any(isinstance(v, torch.Tensor) and v.dtype == torch.bfloat16 for v in values)
        }
        arrays = {name: _as_arrays(name, values) for name, values in numeric.items()}
        fields = {}
        if arrays:
            known = {**well_known_fields(pad_token_id(self.tokenizer)), **self.fields}
            fields = _infer_fields(arrays, known, set(self.fields))
            _refuse_misaligned(arrays, fields)
        encoded = [{name: column[i] for name, column in arrays.items()} for i in range(len(rows))]
        batch = collate(
            encoded,
            fields,
            pad_to_multiple_of=self.pad_to_multiple_of,
            padding_side=self.padding_side,
        )
        tensors: dict[str, Any] = {name: torch.from_numpy(v) for name, v in batch.items()}
        for name in brain_floats:
            tensors[name] = tensors[name].to(torch.bfloat16)
        return {**tensors, **texts}


def pad_token_id(tokenizer: Any) -> int:
    """The tokenizer's pad token, else its eos, else 0; what it is never matters for a mask."""
    for name in ("pad_token_id", "eos_token_id"):
        value = getattr(tokenizer, name, None)
        if value is not None:
            return int(value)
    return 0


def _as_rows(features: Any) -> list[dict[str, Any]]:
    if hasattr(features, "to_pylist"):  # a pyarrow Table or RecordBatch
        features = features.to_pylist()
    if isinstance(features, Mapping):
        names = list(features)
        features = [
            dict(zip(names, values, strict=True)) for values in zip(*features.values(), strict=True)
        ]
    rows = [_as_row(row, place) for place, row in enumerate(features)]
    if not rows:
        raise CollateError(
            "Expected at least one row, found none.", "Pass a list with at least one row."
        )
    return rows


def _as_row(row: Any, place: int) -> dict[str, Any]:
    if hasattr(row, "to_pylist") and not hasattr(row, "items"):  # one-row Arrow slices
        row = row.to_pylist()[0]
    if hasattr(row, "as_py"):  # a pyarrow StructScalar
        row = row.as_py()
    if not isinstance(row, Mapping):
        raise CollateError(
            f"row {place}: expected a mapping of columns, found {type(row).__name__}.",
            "Let the dataset return dicts, such as {'input_ids': …, 'labels': …}.",
        )
    values = {
        name: value.as_py() if hasattr(value, "as_py") else value for name, value in row.items()
    }
    if "label" in values and "labels" not in values:  # the name models take
        values["labels"] = values.pop("label")
    return values


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    for place, row in enumerate(rows):
        for name in names:
            if row.get(name) is None:
                held = "is empty (None)" if name in row else "is missing"
                raise CollateError(
                    f"row {place}: column {name!r} {held}, but other rows have it.",
                    "Give every row a value, or leave the column out of all of them.",
                )
    return {name: [row[name] for row in rows] for name in names}


def _is_text(values: Sequence[Any]) -> bool:
    """Whether a column holds text (or lists of text), which no tensor can hold."""
    first = values[0]
    while isinstance(first, list | tuple) and first:
        first = first[0]
    return isinstance(first, str | bytes) or (
        isinstance(first, np.ndarray) and first.dtype.kind in "USO" and first.size > 0
    )


def _as_arrays(name: str, values: Sequence[Any]) -> list[Array]:
    arrays = [_as_array(name, place, value) for place, value in enumerate(values)]
    filled = [array.dtype for array in arrays if array.size] or [arrays[0].dtype]
    dtype = np.result_type(*filled)
    dtype = np.dtype(_WIDER.get(dtype.name, dtype))
    return [array.astype(dtype, copy=False) for array in arrays]


def _as_array(name: str, place: int, value: Any) -> Array:
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu()
        if "bfloat16" in str(value.dtype):
            value = value.float()
        return np.asarray(value.numpy())
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    try:
        array = np.asarray(value)
    except ValueError:
        array = _pad_nested(value)
    if array.dtype.kind not in "biuf":
        raise CollateError(
            f"row {place}: column {name!r} holds {type(value).__name__} values that are neither "
            f"numbers nor text: {str(value)[:60]}",
            "Convert the values to numbers, or remove the column.",
        )
    # Python floats have no width of their own; torch reads them as float32.
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _pad_nested(value: Any) -> Array:
    """A list of lists of different lengths as one array, padded with 0.

    >>> _pad_nested([[1, 2], [3]]).tolist()
    [[1, 2], [3, 0]]
    """
    parts = [np.asarray(part) if not _is_ragged(part) else _pad_nested(part) for part in value]
    shape = np.max([part.shape for part in parts], axis=0)
    return pad_stack(parts, shape, np.result_type(*parts), 0)


def _is_ragged(value: Any) -> bool:
    try:
        np.asarray(value)
    except ValueError:
        return True
    return False


def _infer_fields(
    arrays: Mapping[str, Sequence[Array]], known: Mapping[str, Field], given: set[str]
) -> dict[str, Field]:
    lead = next((name for name in SEQUENCES if name in arrays), None)
    return {
        name: _infer_field(name, column, arrays.get(lead or ""), lead, known, given)
        for name, column in arrays.items()
    }


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
            f"{list(column[0].shape)}: rows of one column need the same number of axes.",
            "Save every row of the column with the same number of axes.",
        )
    rank = ranks.pop()
    dtype = str(column[0].dtype)
    spec = known.get(name)
    if spec is not None and (name in given or _fits(spec, rank, dtype)):
        if spec.rank != rank:
            raise CollateError(
                f"row 0: column {name!r} has shape {list(column[0].shape)}; its Field has the "
                f"axes {list(spec.axes)}.",
                "Give the Field one name per axis of a row.",
            )
        if name not in given and spec.aligned_with == "input_ids":
            spec = Field(spec.axes, spec.dtype, spec.pad, lead)
        return spec
    if rank and sequence is not None and name != lead and column[0].shape != ():
        matches = sum(len(a) == len(s) for a, s in zip(column, sequence, strict=True))
        fixed = len({array.shape for array in column}) == 1
        if matches == len(column) or (not fixed and matches * 2 > len(column)):
            rest = tuple(f"{name}.{axis}" for axis in range(1, rank))
            return Field(("time", *rest), dtype, 0, lead)
    return Field(tuple(f"{name}.{axis}" for axis in range(rank)), dtype, 0)


def _fits(spec: Field, rank: int, dtype: str) -> bool:
    """Whether a well-known name means here what it usually means (float labels do not)."""
    return spec.rank == rank and np.dtype(dtype).kind in ("biu" if "int" in spec.dtype else "biuf")


def _refuse_misaligned(arrays: Mapping[str, Sequence[Array]], fields: Mapping[str, Field]) -> None:
    for row in range(len(next(iter(arrays.values())))):
        lengths = {name: len(column[row]) for name, column in arrays.items() if column[row].ndim}
        fault = find_misalignment(lengths, fields, row)
        if fault is not None:
            raise CollateError(
                f"{fault}.",
                "Make both from the same tokens; copying the column another way does not help. "
                "For a column with a length of its own, pass fields={...: Field(...)}.",
            )
    embeds = arrays.get("inputs_embeds")
    if embeds is not None and len({array.shape[1:] for array in embeds}) > 1:
        row = next(i for i, array in enumerate(embeds) if array.shape[1:] != embeds[0].shape[1:])
        raise CollateError(
            f"row {row}: 'inputs_embeds' has width {list(embeds[row].shape[1:])}, but row 0 has "
            f"{list(embeds[0].shape[1:])}: widths cannot be padded.",
            "Compute the features of every row with the same width.",
        )
