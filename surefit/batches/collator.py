"""The Collator: makes a batch of any rows, for any training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surefit.batches.collate import Array, Side, collate, pad_token_id, starts_in_time
from surefit.batches.field import SEQUENCES, Field, find_misalignment, well_known_fields
from surefit.batches.python_rows import CollateError, as_arrays, as_columns, as_rows, is_text

if TYPE_CHECKING:
    import torch


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

        rows = as_rows(features)
        columns = as_columns(rows)
        texts = {name: values for name, values in columns.items() if is_text(values)}
        numeric = {name: v for name, v in columns.items() if name not in texts}
        brain_floats = {
            name
            for name, values in numeric.items()
            if name not in self.fields
            and all(isinstance(v, torch.Tensor) and v.dtype == torch.bfloat16 for v in values)
        }
        arrays = {name: as_arrays(name, values) for name, values in numeric.items()}
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


def _infer_fields(
    arrays: Mapping[str, Sequence[Array]], known: Mapping[str, Field], given: set[str]
) -> dict[str, Field]:
    lead = _find_lead(arrays, known)
    return {
        name: _infer_field(name, column, arrays.get(lead or ""), lead, known, given)
        for name, column in arrays.items()
    }


def _find_lead(arrays: Mapping[str, Sequence[Array]], known: Mapping[str, Field]) -> str | None:
    """The sequence column that others are aligned with; None for rows of several sequences."""
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
    """Whether a column has the usual dtype of its name; float labels do not."""
    kinds = "biu" if "int" in spec.dtype else "biuf"
    return column[0].dtype.kind in kinds or not any(array.size for array in column)


def _refuse_misaligned(arrays: Mapping[str, Sequence[Array]], fields: Mapping[str, Field]) -> None:
    for row in range(len(next(iter(arrays.values())))):
        lengths = {name: len(column[row]) for name, column in arrays.items() if column[row].ndim}
        fault = find_misalignment(lengths, fields, row)
        if fault is not None:
            raise CollateError(
                f"{fault}.",
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
