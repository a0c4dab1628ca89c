"""One row as the model sees it: its text, which tokens carry a label or are cut, or shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.branches import LENGTHS
from surefit.batches.field import IGNORE_INDEX
from surefit.data.split import Rows
from surefit.data.table import Table
from surefit.inputs.encoded_row import EncodedRow, RowFaultError
from surefit.inputs.encoder import Encoder
from surefit.inputs.row_encoder import RowEncoder
from surefit.pipeline.accept import accept
from surefit.targets.task_spec import TaskSpec

if TYPE_CHECKING:
    from surefit.inputs.augment.array_augment import ArrayAugment

SHOWN_EPOCHS = 3
"""Epochs that the augmentation of a row is shown in."""


@dataclass(frozen=True)
class RowReading:
    """What a row is read with, and where it belongs."""

    task: TaskSpec
    encoder: Encoder
    train: Rows
    validation: Rows
    augment: ArrayAugment | None = None

    @property
    def encode(self) -> RowEncoder:
        """How one row is encoded."""
        task, encoder = self.task, self.encoder
        return RowEncoder(task.encode, encoder, task.fields_for(encoder), task.count_targets)

    def place(self, row: int) -> int:
        """Return the place of a training row in the Store, which has all that can be encoded."""
        assert self.augment is not None
        return int(np.flatnonzero(self.augment.train.source_row == row)[0])

    def side(self, row: int) -> str | None:
        """Return the set that a row is in."""
        if (self.train == row).any():
            return "training"
        return "evaluation" if (self.validation == row).any() else None


def show_row(table: Table, row: int, reading: RowReading) -> dict[str, Any]:
    """Return encoded columns of a row of the data, by name; why it is not used if it is dropped."""
    encoder, accepted = reading.encoder, accept(table, reading.task, reading.encoder).table
    shown: dict[str, Any] = {"row": row, "side": None}
    try:
        blocks = _encode(accepted, row, reading)
    except RowFaultError as skip:
        why = skip.faults[0].message if skip.faults else None
        return {**shown, "dropped": skip.reason, **({"why": why} if why else {})}
    shown["side"] = reading.side(row)
    columns = _joined(blocks)
    truncated = sum(block.truncated for block in blocks)
    targets = sum(block.num_targets for block in blocks)
    shown |= {"targets": targets, "truncated": truncated > 0}
    if len(blocks) > 1:
        shown["blocks"] = [len(block.columns["input_ids"]) for block in blocks]
    elif LENGTHS in columns:
        shown["blocks"] = columns[LENGTHS].tolist()
    for name, value in columns.items():
        if value.ndim == 0:
            shown[name] = value.item()
        elif value.ndim == 1:
            shown[name] = value.tolist()
        else:
            shown[name] = f"{value.dtype} array {list(value.shape)}"
    if "input_ids" in columns and encoder.tokenizer is not None:
        apart = "decoder_input_ids" in columns  # then the labels are another sequence
        labels = columns.get("labels")
        tokens = token_cells(columns["input_ids"], None if apart else labels, encoder)
        if truncated:
            tokens = _with_truncated(tokens, accepted, row, reading)
        shown["text"] = encoder.tokenizer.decode(columns["input_ids"])
        shown["parts"] = list(_parts(tokens, shown.get("blocks", ()), encoder))
        shown["tokens"] = tokens
        if apart and labels is not None:
            shown["target_tokens"] = token_cells(labels, labels, encoder)
    if reading.augment is not None and shown["side"] == "training":
        place, describe = reading.place(row), reading.augment.describe
        drawn = (describe(place, epoch) for epoch in range(SHOWN_EPOCHS))
        shown["augmented"] = {f"epoch {n}": words for n, words in enumerate(drawn, start=1)}
    if "labels" in columns and columns["labels"].ndim == 0 and encoder.target.classes:
        shown["class"] = encoder.classes[int(columns["labels"])]
    return shown


def _encode(table: Table, row: int, reading: RowReading) -> tuple[EncodedRow, ...]:
    try:
        return reading.encode(table.row(row))
    except RowFaultError as fault:
        if fault.reason:
            raise
        where = table.where(row)
        raise fault.rule.error(f"row {row}: {fault.message}", where, fix=fault.fix) from None


def _joined(blocks: Sequence[EncodedRow]) -> Mapping[str, Any]:
    """Return the columns of a row; the sequences of its blocks are concatenated."""
    first = blocks[0].columns
    if len(blocks) == 1:
        return first
    return {
        name: np.concatenate([block.columns[name] for block in blocks]) if value.ndim else value
        for name, value in first.items()
    }


def token_cells(ids: Any, labels: Any, encoder: Encoder) -> list[dict[str, Any]]:
    """Return the id, the text and the kind of each token; `labels` are those of the same places."""
    learned = labels != IGNORE_INDEX if labels is not None and labels.ndim == 1 else None
    reader = encoder.tokenizer
    special = {*reader.all_special_ids, *reader.added_tokens_decoder} if reader else set()
    return [
        {
            "id": token,
            "text": reader.decode([token]) if reader else f"{token} ",
            "learned": bool(learned[place]) if learned is not None else None,
            "special": token in special,
            "kind": "learned" if learned is not None and learned[place] else "prompt",
        }
        for place, token in enumerate(ids.tolist())
    ]


def _parts(
    tokens: list[dict[str, Any]], blocks: Sequence[int], encoder: Encoder
) -> Iterator[dict[str, str]]:
    """Neighbouring tokens of one kind as text; a character may be made of several tokens.

    Where a row is split, a part of the kind `block` with its number comes before each block.
    """
    ends = [*accumulate(blocks)] or [len(tokens)]
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False), start=1):
        if blocks:
            yield {"kind": "block", "text": str(number)}
        for kind, group in groupby(tokens[start:end], _full_kind):
            ids = [token["id"] for token in group]
            yield {"kind": kind, "text": encoder.tokenizer.decode(ids)}


def _full_kind(token: Mapping[str, Any]) -> str:
    if token["kind"] == "truncated" or not token["special"]:
        return str(token["kind"])
    return "learned special" if token["learned"] else "special"


def _with_truncated(
    tokens: list[dict[str, Any]], table: Table, row: int, reading: RowReading
) -> list[dict[str, Any]]:
    """Return the tokens with those that the limit cut off, where they were."""
    encoder = reading.encoder
    unlimited = replace(reading, encoder=replace(encoder, max_length=None))
    try:
        ids = np.asarray(_encode(table, row, unlimited)[0].columns["input_ids"])
    except RowFaultError:  # dropped: all others became errors
        return tokens
    kept = np.array([token["id"] for token in tokens])
    behind = _equal_from_start(ids[::-1], kept[::-1])
    before = min(_equal_from_start(ids, kept), len(kept) - behind)
    lost = token_cells(ids[before : len(ids) - len(kept) + before], None, encoder)
    cut = [{**token, "learned": False, "kind": "truncated"} for token in lost]
    return [*tokens[:before], *cut, *tokens[before:]]


def _equal_from_start(one: Any, other: Any) -> int:
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length
