"""Other people's runs: an HF Trainer (or TRL's), checked as it is, nothing to migrate.

Every row goes through the trainer's own collator in the order of the data set, so a fault has a
row number; then the probes are run on its model with its own loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from surefit.batches.field import IGNORE_INDEX, well_known_fields
from surefit.checks.encoded_rows import (
    NOTHING_LABELLED,
    ROWS_EXCEED_POSITIONS,
    TOKEN_OUT_OF_VOCABULARY,
)
from surefit.checks.ledger import Ledger
from surefit.checks.probes import run_probes
from surefit.checks.probes.first_batch import LABEL_OUT_OF_RANGE
from surefit.checks.probes.probe_batch import Subject
from surefit.encode.drop_reasons import DropReason
from surefit.errors import UsageError, message_of
from surefit.explainer import explain
from surefit.findings import Finding, Rule, has_errors, rule
from surefit.kernels.tied_embeddings import find_input_embedding

COLLATOR_FAILED = rule(
    "SF720",
    "error",
    "the data collator fails",
    why="It pads only the columns it knows, or meets a row of another shape.",
    fix="Use surefit.Collator(tokenizer) as the data_collator: it pads every column by length.",
)

ROWS_WITHOUT_LABELS = rule(
    "SF721",
    "warning",
    "rows without a labelled token",
    why="They cost time, and a batch of them alone has a loss of 0 or NaN.",
    fix="Leave them out, or keep the end of the answer when rows are cut.",
)

EOS_NEVER_LABELLED = rule(
    "SF722",
    "warning",
    "the end is never learned",
    why=(
        "Where pad is eos, a collator that masks by token id masks the true eos, too: the model "
        "never stops."
    ),
    fix="Use surefit.Collator(tokenizer) as the data_collator: it masks by length.",
)

COLUMNS_DROPPED = rule(
    "SF723",
    "warning",
    "columns dropped by the trainer",
    why="What the model or the loss was to use of them is not there.",
    fix="Name them in forward, or set remove_unused_columns=False.",
)

BOS_TWICE = rule(
    "SF724",
    "warning",
    "a row begins with bos twice",
    why="A template wrote bos and the tokenizer added it again; the model never saw that.",
    fix="Tokenize with add_special_tokens=False what a template has written.",
)

ACCUMULATION_WEIGHTS = rule(
    "SF725",
    "warning",
    "micro-batches weigh the same whatever they hold",
    why="The mean of means is another loss: a short micro-batch counts as much as a long one.",
    fix="Let forward take num_items_in_batch, or use a loss that is a sum over a count.",
)


PROBED_ROWS = 4


@dataclass(frozen=True)
class Checkup:
    """What was found in someone else's run; `as_dict()` is what `check --json` prints."""

    findings: tuple[Finding, ...]
    ledger: Ledger

    @property
    def ok(self) -> bool:
        """Whether nothing found keeps the run from working."""
        return not has_errors(self.findings)

    def as_dict(self) -> dict[str, Any]:
        """The checkup in the form of a plan; what is not known of it is null."""
        return {
            "ok": self.ok,
            "task": None,
            "findings": [found.as_dict() for found in self.findings],
            "ledger": self.ledger.as_dict(),
        }


def check_trainer(trainer: Any) -> Checkup:
    """Check the training rows, the collator and the model of a `transformers.Trainer`."""
    for name in ("model", "train_dataset", "data_collator", "args"):
        if getattr(trainer, name, None) is None:
            raise UsageError(
                f"trainer is a {type(trainer).__name__} without {name}.",
                "Pass a transformers.Trainer, or one of TRL's, that is ready to train.",
            )
    if not hasattr(trainer.train_dataset, "__getitem__"):
        raise UsageError(
            "The trainer's data set is a stream, whose rows have no numbers.",
            "Give the trainer a data set with a length, such as the first rows of the stream.",
        )
    tally = Tally(trainer.model, getattr(trainer, "processing_class", None))
    first: dict[str, Any] | None = None
    for start, batch in _batches(trainer, tally):
        tally.add(batch, start)
        if first is None or _is_richer(batch, first):
            first = batch
    found = [*_dropped_columns(trainer), *tally.findings(), *_accumulation(trainer, tally)]
    if first is not None and not has_errors(found):
        found += run_probes(_subject(trainer, first))
    return Checkup(tuple(found), tally.ledger(len(trainer.train_dataset)))


def _batches(trainer: Any, tally: Tally) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number of the first row, and the batch, for all rows in their order."""
    size = max(2, int(trainer.args.per_device_train_batch_size))
    collate = trainer._get_collator_with_removed_columns(trainer.data_collator, "training")
    for start in range(0, len(trainer.train_dataset), size):
        rows = range(start, min(start + size, len(trainer.train_dataset)))
        try:
            batch = collate([trainer.train_dataset[row] for row in rows])
        except Exception as error:
            tally.failed(rows, error)
            return
        yield start, {name: value for name, value in batch.items() if hasattr(value, "shape")}


def _is_richer(batch: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a batch has rows of different length where the other has not."""
    return _is_ragged(batch) and not _is_ragged(other)


def _is_ragged(batch: Mapping[str, Any]) -> bool:
    mask = batch.get("attention_mask")
    return mask is not None and mask.ndim == 2 and bool((mask.sum(1) != mask.shape[1]).any())


@dataclass
class Tally:
    """Counts over all rows, and the first row of each kind of fault."""

    model: Any
    processor: Any
    found: dict[Rule, Finding] = field(default_factory=dict)
    rows: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    empty_rows: int = 0
    first_empty: int | None = None
    ending_rows: int = 0
    rows_learning_eos: int = 0
    targets_per_batch: list[int] = field(default_factory=list)

    def failed(self, rows: range, error: Exception) -> None:
        """Note that the collator could not make a batch."""
        lines = message_of(error).strip().splitlines() or [""]
        message = (
            f"The data collator fails on rows {rows[0]} to {rows[-1]}: "
            f"{type(error).__name__}: {lines[0][:200]}"
        )
        cause = explain(error)
        if cause.known:
            message += f" Cause: {cause.title} ({cause.code}). {' '.join(cause.derived)}".rstrip()
        self.found[COLLATOR_FAILED] = COLLATOR_FAILED.finding(message, row=rows[0])

    def add(self, batch: Mapping[str, Any], start: int) -> None:
        """Count a batch whose first row is row `start` of the data."""
        ids, labels = batch.get("input_ids"), batch.get("labels")
        lead = ids if ids is not None else next(iter(batch.values()))
        self.rows += len(lead)
        mask = batch.get("attention_mask")
        real = mask.bool() if mask is not None and mask.ndim == 2 else None
        self.tokens += int(real.sum()) if real is not None else int(lead[..., 0].numel())
        if ids is not None:
            self._check_ids(ids, start)
        if labels is not None:
            self._check_labels(labels, start)
        if ids is not None and labels is not None and labels.shape == ids.shape:
            self._check_endings(ids, labels, real)

    def _check_ids(self, ids: Any, start: int) -> None:
        embedding = find_input_embedding(self.model)
        if embedding is None:
            return
        size = embedding.weight.shape[0]
        self._note_first(
            TOKEN_OUT_OF_VOCABULARY,
            (ids < 0) | (ids >= size),
            ids,
            start,
            f"the vocabulary has {size} tokens",
        )
        positions = getattr(self.model.config, "max_position_embeddings", None)
        if (
            positions is not None
            and ids.shape[1] > positions
            and ROWS_EXCEED_POSITIONS not in self.found
        ):
            message = f"Rows {start} and on: {ids.shape[1]} tokens, but {positions} positions."
            self.found[ROWS_EXCEED_POSITIONS] = ROWS_EXCEED_POSITIONS.finding(message, row=start)
        bos = getattr(self.processor, "bos_token_id", None)
        if bos is not None and ids.shape[1] > 1:
            twice = (ids[:, :2] == bos).all(1) & (
                bos != getattr(self.processor, "pad_token_id", None)
            )
            self._note_first(BOS_TWICE, twice, ids[:, 0], start, "bos begins it twice")

    def _check_labels(self, labels: Any, start: int) -> None:
        if labels.ndim == 1 and not labels.is_floating_point():
            size = int(getattr(self.model.config, "num_labels", 0))
            wrong = (labels < 0) | (labels >= size)
            self._note_first(
                LABEL_OUT_OF_RANGE, wrong, labels, start, f"the model has {size} classes"
            )
        if labels.ndim < 2 or labels.is_floating_point():
            self.trained_tokens += len(labels)
            self.targets_per_batch.append(len(labels))
            return
        learned = (labels != IGNORE_INDEX).sum(1)
        self.trained_tokens += int(learned.sum())
        self.targets_per_batch.append(int(learned.sum()))
        empty = (learned == 0).nonzero().flatten().tolist()
        self.empty_rows += len(empty)
        if empty and self.first_empty is None:
            self.first_empty = start + empty[0]

    def _check_endings(self, ids: Any, labels: Any, real: Any) -> None:
        """Rows that end in eos, and those of them that learn to."""
        eos = getattr(self.processor, "eos_token_id", None)
        if eos is None:
            return
        for row in range(len(ids)):
            places = real[row].nonzero().flatten() if real is not None else range(ids.shape[1])
            if len(places) and int(ids[row, places[-1]]) == eos:
                self.ending_rows += 1
                self.rows_learning_eos += int(labels[row, places[-1]]) == eos

    def _note_first(self, rule: Rule, wrong: Any, values: Any, start: int, expected: str) -> None:
        if rule in self.found or not bool(wrong.any()):
            return
        place = [int(axis) for axis in wrong.nonzero()[0]]
        value = values[tuple(place)]
        message = f"row {start + place[0]}: {int(value)} at {place[1:] or 'its label'}; {expected}."
        self.found[rule] = rule.finding(message, row=start + place[0])

    def findings(self) -> list[Finding]:
        """What the rows showed, all of them counted."""
        found = list(self.found.values())
        if self.rows and self.trained_tokens == 0:
            message = f"None of {self.rows} rows has a label: the loss would be 0 or NaN."
            found.append(NOTHING_LABELLED.finding(message, row=0))
        elif self.empty_rows:
            message = f"{self.empty_rows} of {self.rows} rows have no labelled token."
            found.append(ROWS_WITHOUT_LABELS.finding(message, row=self.first_empty))
        if self.ending_rows and self.rows_learning_eos == 0 and self.trained_tokens:
            message = f"{self.ending_rows} rows end in eos, and in none of them is it learned."
            found.append(EOS_NEVER_LABELLED.finding(message, row=0))
        return found

    def ledger(self, num_rows: int) -> Ledger:
        """The account of the rows; those after a failing batch were not seen."""
        unseen = num_rows - self.rows
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
            train_blocks=self.rows,
        )


def _dropped_columns(trainer: Any) -> list[Finding]:
    """Columns that the trainer throws away because forward does not name them."""
    columns = getattr(trainer.train_dataset, "column_names", None)
    if columns is None or not trainer.args.remove_unused_columns:
        return []
    trainer._set_signature_columns_if_needed()
    dropped = [name for name in columns if name not in trainer._signature_columns]
    if not dropped:
        return []
    message = f"The trainer drops the columns {', '.join(dropped)}: forward does not name them."
    return [COLUMNS_DROPPED.finding(message, column=dropped[0])]


def _accumulation(trainer: Any, tally: Tally) -> list[Finding]:
    """Micro-batches that are averaged though they have different numbers of targets."""
    steps = int(trainer.args.gradient_accumulation_steps)
    counts = set(tally.targets_per_batch[:-1])
    aware = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func
    if steps == 1 or aware or len(counts) < 2:
        return []
    message = (
        f"{steps} micro-batches with {min(counts)} to {max(counts)} targets are averaged as if "
        "they had the same number."
    )
    return [ACCUMULATION_WEIGHTS.finding(message)]


def _subject(trainer: Any, batch: Mapping[str, Any]) -> Subject:
    """The trainer's model and loss on a few of its own rows."""
    rows = {name: value[:PROBED_ROWS] for name, value in batch.items()}
    rows = {name: value.to(trainer.args.device) for name, value in rows.items()}
    labels = rows.get("labels")
    pad = getattr(trainer.processing_class, "pad_token_id", None) or 0
    tokens = labels is not None and "input_ids" in rows and labels.shape == rows["input_ids"].shape
    name = type(trainer.model).__name__
    named = (str(each) for each in getattr(trainer.model.config, "architectures", None) or [name])
    causal = tokens and any(
        each.endswith(("ForCausalLM", "LMHeadModel")) for each in (name, *named)
    )
    return Subject(
        trainer.model,
        rows,
        forward=lambda batch: trainer.model(**batch),
        loss=_sum_of_mean,
        fields=well_known_fields(pad),
        causal=causal,
    )


def _sum_of_mean(outputs: Any, batch: Mapping[str, Any]) -> tuple[Any, int]:
    """The model's own mean loss as a sum over the targets that it counts."""
    labels = batch.get("labels")
    if labels is None or labels.ndim < 2 or labels.is_floating_point():
        count = len(next(iter(batch.values())))
    else:
        count = max(1, int((labels[:, 1:] != IGNORE_INDEX).sum()))
    return outputs["loss"] * count, count
