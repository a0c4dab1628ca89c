"""What an HF Trainer makes of its rows: its collator's batches, and the sequences in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import IGNORE_INDEX
from surefit.checks.causal_labels import KnownTokens

STREAMED_ROWS = 1000
"""Rows of a stream that are looked at."""

Ids = npt.NDArray[np.int64]


class CollatorFailedError(Exception):
    """The collator raised on some rows; `__cause__` is what it raised."""

    def __init__(self, rows: range) -> None:
        super().__init__(f"rows {rows[0]} to {rows[-1]}")
        self.rows = rows


@dataclass(frozen=True)
class TrainerBatch:
    """One batch of the collator, and the numbers of the rows it was made from."""

    rows: range
    lengths: tuple[int, ...]
    """Tokens of each row before it was collated; empty where they are not known."""
    tensors: Mapping[str, Any]

    @property
    def positions(self) -> Ids | None:
        """Where each token is in its sequence, in a batch without padding; else None."""
        ids, positions = self.tensors.get("input_ids"), self.tensors.get("position_ids")
        if ids is None or positions is None or "attention_mask" in self.tensors:
            return None
        return _numpy(positions[0]) if positions.shape == ids.shape and len(ids) == 1 else None


@dataclass(frozen=True)
class TrainedSequence:
    """The tokens of one sequence, what is learned of them, and the row it comes from."""

    row: int
    ids: Ids
    labels: Ids | None
    mask: npt.NDArray[np.bool_] | None


def iter_batches(trainer: Any) -> Iterator[TrainerBatch]:
    """The batches of all rows in their order; of a stream, those of its first rows."""
    size = max(2, int(trainer.args.per_device_train_batch_size))
    collate = trainer._get_collator_with_removed_columns(trainer.data_collator, "training")
    start = 0
    rows = _rows(trainer.train_dataset)
    while chunk := list(islice(rows, size)):
        numbers = range(start, start + len(chunk))
        try:
            batch = collate(chunk)
        except Exception as error:
            raise CollatorFailedError(numbers) from error
        ids = [row.get("input_ids") if isinstance(row, Mapping) else None for row in chunk]
        lengths = tuple(len(each) for each in ids if isinstance(each, Sized))
        tensors = {name: value for name, value in batch.items() if hasattr(value, "shape")}
        yield TrainerBatch(numbers, lengths if len(lengths) == len(chunk) else (), tensors)
        start += len(chunk)


def is_stream(dataset: Any) -> bool:
    """Whether a data set can only be read from its beginning."""
    return not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__")


def _rows(dataset: Any) -> Iterator[Any]:
    if is_stream(dataset):
        return islice(iter(dataset), STREAMED_ROWS)
    return (dataset[row] for row in range(len(dataset)))


def find_sequences(batch: TrainerBatch, pad: int | None) -> list[TrainedSequence]:
    """The sequences of a batch of tokens; packed ones are taken apart."""
    ids, labels = batch.tensors.get("input_ids"), batch.tensors.get("labels")
    if ids is None or ids.ndim != 2:
        return []
    ids = _numpy(ids)
    completion, mask = batch.tensors.get("completion_mask"), batch.tensors.get("attention_mask")
    learned: Ids | None = None
    if labels is not None and tuple(labels.shape) == ids.shape and not labels.is_floating_point():
        learned = _numpy(labels)
    elif completion is not None and tuple(completion.shape) == ids.shape:  # TRL's preference data
        learned = np.where(_numpy(completion) != 0, ids, IGNORE_INDEX)
    if batch.positions is not None:
        return list(_unpack(batch, batch.positions, ids[0], learned, pad))
    seen = _numpy(mask) != 0 if mask is not None and tuple(mask.shape) == ids.shape else None
    return [
        TrainedSequence(
            _row_of(place, len(ids), batch.rows),
            ids[place],
            learned[place] if learned is not None else None,
            seen[place] if seen is not None else None,
        )
        for place in range(len(ids))
        if ids.shape[1]
    ]


def _unpack(
    batch: TrainerBatch, positions: Ids, ids: Ids, labels: Ids | None, pad: int | None
) -> Iterator[TrainedSequence]:
    """The sequences of a batch without padding: each begins at position 0."""
    starts = np.flatnonzero(positions == 0)
    ends = np.append(starts[1:], len(ids))
    row_ends = np.cumsum(batch.lengths) if batch.lengths else np.asarray([len(ids)])
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        filled = end - start == 1 and ids[start] == pad and start >= row_ends[-1]
        if filled:  # to a multiple of some length
            continue
        row = int(np.searchsorted(row_ends, start, side="right"))
        of = labels[0, start:end] if labels is not None else None
        yield TrainedSequence(batch.rows[min(row, len(batch.rows) - 1)], ids[start:end], of, None)


def _row_of(place: int, num_collated: int, rows: range) -> int:
    """The row of one collated sequence; preference data has all chosen ones, then all rejected."""
    return rows[place % len(rows)] if num_collated % len(rows) == 0 else rows[0]


def _numpy(tensor: Any) -> Ids:
    return np.asarray(tensor.detach().cpu().numpy(), np.int64)


def find_tokenizer(trainer: Any) -> Any:
    """The tokenizer of a trainer: its processing class, or what its collator pads with."""
    collator = trainer.data_collator
    holders = [getattr(trainer, "processing_class", None)]
    holders += [getattr(collator, n, None) for n in ("tokenizer", "processing_class", "processor")]
    for holder in holders:
        tokenizer = getattr(holder, "tokenizer", holder)
        if getattr(tokenizer, "eos_token_id", None) is not None:
            return tokenizer
    return None


def known_tokens(trainer: Any, tokenizer: Any) -> KnownTokens:
    """pad and the tokens that end a text: the tokenizer's, else the model's."""
    generation = getattr(trainer.model, "generation_config", None)
    config = getattr(trainer.model, "config", None)
    pad = getattr(trainer.data_collator, "pad_token_id", None)
    if tokenizer is None:
        pads = [pad, *(getattr(holder, "pad_token_id", None) for holder in (config, generation))]
        ends = {*_ids(getattr(config, "eos_token_id", None))}
        ends |= {*_ids(getattr(generation, "eos_token_id", None))}
        return KnownTokens(next((p for p in pads if p is not None), None), frozenset(ends), None)
    added = getattr(tokenizer, "added_tokens_decoder", {}).items()
    more = (number for number, token in added if getattr(token, "special", False))
    special = frozenset({*tokenizer.all_special_ids, *more})
    stops = {*_ids(getattr(generation, "eos_token_id", None))} & special
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else pad
    return KnownTokens(pad, frozenset({*_ids(tokenizer.eos_token_id)} | stops - {pad}), special)


def find_bos(trainer: Any, tokenizer: Any) -> int | None:
    """The token that begins a text."""
    holder = tokenizer if tokenizer is not None else getattr(trainer.model, "config", None)
    bos = getattr(holder, "bos_token_id", None)
    return bos if isinstance(bos, int) else None


def _ids(value: Any) -> Iterable[int]:
    if value is None:
        return ()
    return [int(value)] if isinstance(value, int) else [int(each) for each in value]
