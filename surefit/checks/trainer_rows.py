"""The rows of someone else's trainer, as its collator batches them: tokens, labels and faults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import IGNORE_INDEX
from surefit.checks.causal_labels import (
    END_NEVER_LABELLED,
    LABELS_ON_PADDING,
    LABELS_WHERE_MASKED,
    Hits,
    KnownTokens,
    LabelTally,
    TokenRows,
    check_labels,
    find_padding,
)
from surefit.checks.encoded_rows import (
    NOTHING_LABELLED,
    ROWS_EXCEED_POSITIONS,
    TOKEN_OUT_OF_VOCABULARY,
)
from surefit.checks.ledger import Ledger
from surefit.checks.probes.outputs import LABEL_OUT_OF_RANGE
from surefit.errors import describe_error
from surefit.explainer import explain
from surefit.findings import Finding, Rule, rule
from surefit.inputs.encoded_row import DropReason
from surefit.speed.sparse_head import find_input_embedding

COLLATOR_FAILED = rule(
    "SF720",
    "error",
    "the data collator fails",
    why="It pads only the columns it knows, or the rows have different shapes.",
    fix="Use data_collator=surefit.Collator(tokenizer): it pads every column by length.",
)

ROWS_WITHOUT_LABELS = rule(
    "SF721",
    "warning",
    "rows without a labelled token",
    why="They cost time, and a batch of them alone has a loss of 0 or NaN.",
    fix="Remove these rows, or keep the end of the answer when rows are truncated.",
)

BOS_TWICE = rule(
    "SF724",
    "warning",
    "rows begin with bos twice",
    why=(
        "A chat template wrote bos, and the tokenizer added it again. The model was never trained "
        "on two of them."
    ),
    fix="Call the tokenizer with add_special_tokens=False on text that a template has rendered.",
)

SAME_ANSWERS = rule(
    "SF727",
    "warning",
    "chosen and rejected are the same",
    why="The loss of such a pair has no gradient, or only that of its regularisation.",
    fix="Remove these rows, or correct one of the two answers.",
)

STREAMED_ROWS = 1000
"""Rows of a stream that are looked at."""

Ids = npt.NDArray[np.int64]


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
    """Yield the batches of all rows in their order; of a stream, those of its first rows."""
    size = max(2, int(trainer.args.per_device_train_batch_size))
    collate = trainer._get_collator_with_removed_columns(trainer.data_collator, "training")
    start = 0
    rows = _rows(trainer.train_dataset)
    while chunk := list(islice(rows, size)):
        numbers = range(start, start + len(chunk))
        try:
            batch = collate(chunk)
        except Exception as error:
            what = f"The data collator fails on rows {start} to {numbers[-1]}"
            message, _ = describe_failure(what, error)
            raise COLLATOR_FAILED.error(message, row=start) from error
        ids = [row.get("input_ids") if isinstance(row, Mapping) else None for row in chunk]
        lengths = tuple(len(each) for each in ids if isinstance(each, Sized))
        tensors = {name: value for name, value in batch.items() if hasattr(value, "shape")}
        yield TrainerBatch(numbers, lengths if len(lengths) == len(chunk) else (), tensors)
        start += len(chunk)


def describe_failure(what: str, error: Exception) -> tuple[str, str]:
    """Return a message with what was raised and its cause, and the fix, if these are known."""
    message, cause = f"{what}: {describe_error(error)[:300]}", explain(error)
    if cause.known:
        message += f" Cause: {cause.title} ({cause.code}). {' '.join(cause.derived)}".rstrip()
    return message, cause.fix or ""


def is_stream(dataset: Any) -> bool:
    """Return whether a data set can only be read from its beginning."""
    return not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__")


def _rows(dataset: Any) -> Iterator[Any]:
    if is_stream(dataset):
        return islice(iter(dataset), STREAMED_ROWS)
    return (dataset[row] for row in range(len(dataset)))


def find_sequences(batch: TrainerBatch, pad: int | None) -> list[TrainedSequence]:
    """Return the sequences of a batch of tokens; packed ones are taken apart."""
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
            # preference data has all chosen sequences, then all rejected ones
            batch.rows[place % len(batch.rows) if len(ids) % len(batch.rows) == 0 else 0],
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
    """Yield the sequences of a batch without padding: each begins at position 0."""
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


def _numpy(tensor: Any) -> Ids:
    return np.asarray(tensor.detach().cpu().numpy(), np.int64)


@dataclass
class RowTally:
    """Counts over all rows, and the first rows of each kind of fault."""

    model: Any
    known: KnownTokens
    bos: int | None = None
    rows: int = 0
    num_sequences: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    rows_learning_eos: int = 0
    ending_sequences: int = 0
    targets_per_batch: list[int] = field(default_factory=list)
    hits: dict[Rule, Hits] = field(default_factory=dict)
    examples: dict[Rule, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.labels = LabelTally(self.known)
        self.causal = is_causal(self.model)
        self.encodes = bool(getattr(self._config, "is_encoder_decoder", False))
        embedding = find_input_embedding(self.model)
        self.vocab_size = int(embedding.weight.shape[0]) if embedding is not None else None
        positions = getattr(self._config, "max_position_embeddings", None)
        self.max_positions = positions if isinstance(positions, int) and positions > 0 else None

    @property
    def _config(self) -> Any:
        return getattr(self.model, "config", None)

    def add(self, batch: TrainerBatch) -> None:
        """Count a batch."""
        self.rows += len(batch.rows)
        sequences = find_sequences(batch, self.known.pad)
        if sequences:
            self._add_sequences(sequences, batch)
        else:
            lead = next(iter(batch.tensors.values()))
            self.num_sequences += len(lead)
            self.tokens += len(lead)
        labels = batch.tensors.get("labels")
        if labels is not None:
            self._add_labels(labels, batch)
        if "completion_mask" in batch.tensors and len(sequences) == 2 * len(batch.rows):
            half = len(batch.rows)
            for chosen, rejected in zip(sequences[:half], sequences[half:], strict=True):
                if np.array_equal(chosen.ids, rejected.ids):
                    self._hit(SAME_ANSWERS, 1, chosen.row)

    def _add_sequences(self, sequences: list[TrainedSequence], batch: TrainerBatch) -> None:
        blank = np.full(0, IGNORE_INDEX)
        rows = TokenRows.of_rows(
            [(s.ids, s.labels if s.labels is not None else s.ids, s.mask) for s in sequences]
        )
        padding = find_padding(rows, self.known.pad, self.known.ends)
        learning = set()
        for each, start in zip(sequences, rows.starts.tolist(), strict=False):
            seen = each.mask
            real = seen if seen is not None else ~padding[start : start + len(each.ids)]
            self.tokens += int(real.sum())
            self._check_ids(each, real)
            labels = each.labels if each.labels is not None else blank
            if self.causal and np.isin(labels, list(self.known.ends)).any():
                learning.add(each.row)
            last = each.ids[real][-1:]
            self.ending_sequences += bool(len(last) and last[0] in self.known.ends)
        width = max(len(each.ids) for each in sequences)
        if ROWS_EXCEED_POSITIONS not in self.hits and width > (self.max_positions or width):
            example = f"{width:,} tokens with its padding"  # no row does so without it
            self._hit(ROWS_EXCEED_POSITIONS, width, sequences[0].row, example)
        self.num_sequences += len(sequences)
        self.rows_learning_eos += len(learning)
        if self.causal and sequences[0].labels is not None:
            self.labels.add(rows, [each.row for each in sequences])
            if "labels" not in batch.tensors:
                self.trained_tokens += int((rows.labels != IGNORE_INDEX).sum())

    def _check_ids(self, each: TrainedSequence, real: Any) -> None:
        ids = each.ids
        if self.vocab_size is not None:
            outside = np.flatnonzero((ids < 0) | (ids >= self.vocab_size))
            if len(outside):
                place = int(outside[0])
                example = f"token id {int(ids[place])} at position {place}"
                self._hit(TOKEN_OUT_OF_VOCABULARY, len(outside), each.row, example)
        length = int(real.sum())
        if self.max_positions is not None and length > self.max_positions:
            self._hit(ROWS_EXCEED_POSITIONS, length, each.row, f"{length:,} tokens")
        first = ids[real][:2]
        if self.bos not in (None, self.known.pad) and len(first) == 2 and (first == self.bos).all():
            self._hit(BOS_TWICE, 1, each.row)

    def _add_labels(self, labels: Any, batch: TrainerBatch) -> None:
        """Count labels as the collator gives them, whatever they are aligned with."""
        values = labels.detach().cpu().numpy()
        if values.ndim < 2 or labels.is_floating_point():
            self.trained_tokens += len(values)
            self.targets_per_batch.append(len(values))
            if values.ndim == 1 and not labels.is_floating_point():
                self._check_classes(values[:, None], batch.rows)
            return
        learned = (values != IGNORE_INDEX).reshape(len(values), -1).sum(1)
        self.trained_tokens += int(learned.sum())
        self.targets_per_batch.append(int(learned.sum()))
        if batch.positions is None and len(values) % len(batch.rows) == 0:
            for place in np.flatnonzero(learned == 0).tolist():
                self._hit(ROWS_WITHOUT_LABELS, 1, batch.rows[place % len(batch.rows)])
        if _named(self.model, ("ForTokenClassification",)):
            self._check_classes(values, batch.rows)
        if self.encodes and values.shape[1:] and len(values) == len(batch.rows):
            self._add_decoder_labels(values, batch.rows)

    def _check_classes(self, values: Any, rows: range) -> None:
        size = int(getattr(self._config, "num_labels", 0) or 0)
        if size < 2 or len(values) != len(rows):
            return
        wrong = (values != IGNORE_INDEX) & ((values < 0) | (values >= size))
        for place in np.flatnonzero(wrong.any(1)).tolist():
            label = int(values[place][wrong[place]][0])
            self._hit(LABEL_OUT_OF_RANGE, int(wrong[place].sum()), rows[place], f"label {label}")

    def _add_decoder_labels(self, values: Any, rows: range) -> None:
        """The labels of an encoder-decoder are the text itself; only padding may be left out."""
        pad = self.known.pad if self.known.pad is not None else IGNORE_INDEX
        ids = np.where(values == IGNORE_INDEX, pad, values)
        self.labels.add(TokenRows.of_batch(ids, values), list(rows))
        self.rows_learning_eos += int(np.isin(values, list(self.known.ends)).any(1).sum())

    def _hit(self, found: Rule, tokens: int, row: int, example: str = "") -> None:
        self.hits.setdefault(found, Hits()).add(np.asarray([tokens]), np.asarray([row]))
        self.examples.setdefault(found, example)

    def findings(self) -> Iterator[Finding]:
        """Yield what the rows showed, all of them counted."""
        sizes = {
            TOKEN_OUT_OF_VOCABULARY: f"the vocabulary has {self.vocab_size or 0:,} tokens",
            ROWS_EXCEED_POSITIONS: f"the model has {self.max_positions} positions",
            LABEL_OUT_OF_RANGE: f"the model has {getattr(self._config, 'num_labels', 0)} classes",
        }
        what = {
            TOKEN_OUT_OF_VOCABULARY: "have token ids outside the vocabulary",
            ROWS_EXCEED_POSITIONS: "are longer than the model's positions",
            LABEL_OUT_OF_RANGE: "have labels that the model has no class for",
            BOS_TWICE: f"begin with two bos tokens (id {self.bos})",
            SAME_ANSWERS: "have the same tokens as chosen and as rejected answer",
            ROWS_WITHOUT_LABELS: "have no labelled token",
        }
        has_labels = self.targets_per_batch or self.labels.rows
        if self.rows and self.trained_tokens == 0 and has_labels:
            message = f"None of {self.rows:,} rows has a label: the loss would be 0 or NaN."
            yield NOTHING_LABELLED.finding(message, row=0)
            self.hits.pop(ROWS_WITHOUT_LABELS, None)
        for found, hits in self.hits.items():
            message = describe_hits(hits, what[found], self.rows)
            if found in sizes:
                first = f"Row {hits.first[0]} has {self.examples[found]}; {sizes[found]}."
                message = f"{message} {first}"
            yield found.finding(message, row=hits.first[0])
        if self.trained_tokens and TOKEN_OUT_OF_VOCABULARY not in self.hits:
            yield from self._label_findings()

    def _label_findings(self) -> Iterator[Finding]:
        """Labels against tokens; in a trainer, labels count wherever they are."""
        tally = self.labels
        if tally.masked_padding.rows:
            hits, tally.masked_padding = tally.masked_padding, Hits()
            what = f"have labels on padding, {hits.tokens:,} in all"
            message = describe_hits(hits, what, self.rows)
            fix = "Set the labels of padding to -100; surefit.Collator(tokenizer) does it."
            yield LABELS_ON_PADDING.finding(message, row=hits.first[0], column="labels", fix=fix)
        for found in check_labels(tally, lambda row: {"row": row}):
            if found.code == LABELS_WHERE_MASKED.code:
                why = "The loss counts these labels, though no other token attends to their tokens."
                found = replace(found, why=why)
            if found.code in ("SF154", "SF155") and self.ending_sequences:
                found = self._masked_end()
            yield found

    def _masked_end(self) -> Finding:
        ends = " or ".join(map(str, sorted(self.known.ends)))
        shared = " pad is the same token." if self.known.pad in self.known.ends else ""
        return END_NEVER_LABELLED.finding(
            f"{self.ending_sequences:,} of {self.num_sequences:,} rows end with eos (id {ends}), "
            f"and its label is -100 in all of them.{shared}",
            fix="Use data_collator=surefit.Collator(tokenizer): it masks by length, not by id.",
            row=0,
            column="labels",
        )

    def ledger(self, num_rows: int) -> Ledger:
        """Return the account of the rows; those after a failing batch were not seen."""
        unseen = num_rows - self.rows
        has_tokens = self.vocab_size is not None
        return Ledger(
            rows=num_rows,
            used_rows=self.rows,
            train_rows=self.rows,
            eval_rows=0,
            dropped_rows={DropReason.NOT_COLLATED.value: unseen} if unseen else {},
            truncated_rows=0,
            tokens=self.tokens,
            trained_tokens=self.trained_tokens,
            rows_learning_eos=self.rows_learning_eos,
            train_views=self.rows,
            dropped_views={},
            unit="tokens" if has_tokens else "rows",
            train_blocks=self.num_sequences,
        )


def describe_hits(hits: Hits, what: str, num_rows: int) -> str:
    """Return how many rows have a fault, and the first ones.

    >>> describe_hits(Hits(2, 2, [3, 7]), "are empty", 10)
    '2 of 10 rows are empty. Rows 3, 7, for example.'
    """
    numbers = ", ".join(map(str, hits.first))
    return (
        f"{hits.rows:,} of {num_rows:,} rows {what}. "
        f"Row{'s' * (len(hits.first) > 1)} {numbers}, for example."
    )


def is_causal(model: Any) -> bool:
    """Whether the model predicts each token from those before it, and shifts labels itself."""
    return _named(model, ("ForCausalLM", "LMHeadModel"))


def _named(model: Any, endings: tuple[str, ...]) -> bool:
    config = getattr(model, "config", None)
    named = [type(model).__name__, *(getattr(config, "architectures", None) or [])]
    return any(str(name).endswith(endings) for name in named)
