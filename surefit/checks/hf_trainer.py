"""Other people's runs: an HF Trainer (or TRL's), checked as it is, nothing to migrate.

Every row goes through the trainer's own collator in the order of the data set, so a fault has a
row number; then the probes are run on its model with its own loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from surefit.checks.ledger import Ledger
from surefit.checks.module_checks import NOTHING_TRAINABLE, check_trainable
from surefit.checks.trainer_batches import (
    STREAMED_ROWS,
    CollatorFailedError,
    TrainerBatch,
    find_bos,
    find_tokenizer,
    is_stream,
    iter_batches,
    known_tokens,
)
from surefit.checks.trainer_probes import has_own_loss, is_of_library, probe_trainer
from surefit.checks.trainer_rows import RowTally
from surefit.errors import UsageError, message_of
from surefit.explainer import explain
from surefit.findings import Finding, has_errors, note, part_notes, rule

COLLATOR_FAILED = rule(
    "SF720",
    "error",
    "the data collator fails",
    why="It pads only the columns it knows, or the rows have different shapes.",
    fix="Use data_collator=surefit.Collator(tokenizer): it pads every column by length.",
)

ACCUMULATION_WEIGHTS = rule(
    "SF725",
    "warning",
    "micro-batches weigh the same whatever they hold",
    why=(
        "A step averages the means of its micro-batches, so a label in a short micro-batch counts "
        "more than one in a long micro-batch."
    ),
    fix="Let forward take num_items_in_batch, or use a loss that is a sum over a count.",
)


@dataclass(frozen=True)
class Checkup:
    """What was found in someone else's run; `as_dict()` is what `check --json` prints."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
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
            "notes": list(self.notes),
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
    tokenizer = find_tokenizer(trainer)
    known = known_tokens(trainer, tokenizer)
    tally = RowTally(trainer.model, known, find_bos(trainer, tokenizer))
    richest: TrainerBatch | None = None
    failed: list[Finding] = []
    try:
        for batch in iter_batches(trainer):
            tally.add(batch)
            ragged = _is_ragged(batch.tensors)
            if richest is None or (ragged and not _is_ragged(richest.tensors)):
                richest = batch
    except CollatorFailedError as error:
        failed = [_describe_failure(error)]
    found = [
        *failed,
        *check_columns(trainer),
        *tally.findings(),
        *check_trainable(trainer.model),
        *_check_optimizer(trainer),
        *_check_accumulation(trainer, tally),
    ]
    if richest is not None and not has_errors(found):
        found += probe_trainer(trainer, richest, known)
    found += _name_unchecked(trainer, tally)
    streamed = is_stream(trainer.train_dataset)
    num_rows = tally.rows if streamed else len(trainer.train_dataset)
    return Checkup(*part_notes(found), tally.ledger(num_rows))


def _is_ragged(batch: Mapping[str, Any]) -> bool:
    """Whether the rows of a batch have different lengths."""
    mask = batch.get("attention_mask")
    return mask is not None and mask.ndim == 2 and bool((mask.sum(1) != mask.shape[1]).any())


def _describe_failure(failure: CollatorFailedError) -> Finding:
    """What the collator raised, with its cause if that is known."""
    error, rows = failure.__cause__, failure.rows
    assert isinstance(error, Exception)
    lines = message_of(error).strip().splitlines() or [""]
    message = (
        f"The data collator fails on rows {rows[0]} to {rows[-1]}: "
        f"{type(error).__name__}: {lines[0][:200]}"
    )
    cause = explain(error)
    if cause.known:
        message += f" Cause: {cause.title} ({cause.code}). {' '.join(cause.derived)}".rstrip()
    return COLLATOR_FAILED.finding(message, row=rows[0])


def _check_optimizer(trainer: Any) -> Iterator[Finding]:
    """An optimizer passed in must hold what is trained."""
    groups = getattr(getattr(trainer, "optimizer", None), "param_groups", None)
    if groups is None:
        return
    trained = {id(p) for p in trainer.model.parameters() if p.requires_grad}
    held = {id(parameter) for group in groups for parameter in group["params"]}
    if trained and not trained & held:
        message = f"The optimizer holds {len(held):,} parameters, none of the {len(trained):,} "
        fix = "Pass optimizers=(None, None), or make it from trainer.model.parameters()."
        yield NOTHING_TRAINABLE.finding(f"{message}that the model trains.", fix=fix)


def _check_accumulation(trainer: Any, tally: RowTally) -> list[Finding]:
    """Micro-batches that are averaged though they have different numbers of targets."""
    steps = int(trainer.args.gradient_accumulation_steps)
    counts = set(tally.targets_per_batch[:-1])
    aware = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func
    if steps == 1 or aware or len(counts) < 2:
        return []
    message = (
        f"A step averages {steps} micro-batches that have between {min(counts):,} and "
        f"{max(counts):,} labels, as if they had the same number."
    )
    return [ACCUMULATION_WEIGHTS.finding(message)]


def _name_unchecked(trainer: Any, tally: RowTally) -> Iterator[Finding]:
    """Name all that was not looked at in one note."""
    parts = []
    name = type(trainer).__name__
    if is_stream(trainer.train_dataset) and tally.rows >= STREAMED_ROWS:
        parts.append(f"rows after the first {STREAMED_ROWS:,} of the stream")
    if trainer.eval_dataset is not None:
        parts.append("the rows of eval_dataset")
    if has_own_loss(trainer):
        parts.append("whether your own loss is a sum over rows, as gradient accumulation needs it")
    elif tally.rows and not tally.targets_per_batch:
        parts.append(f"the loss of {name}, which is not computed from labels")
    if not is_of_library(type(trainer).get_train_dataloader):
        parts.append(f"the batches of {name}.get_train_dataloader; rows were collated in order")
    if tally.causal and not tally.known.ends:
        parts.append("whether the end of a text is learned, as no eos token is known")
    if parts:
        yield note(f"Not checked: {'; '.join(parts)}.")


COLUMNS_DROPPED = rule(
    "SF723",
    "warning",
    "columns dropped by the trainer",
    why="The model and the loss do not see them, so they have no effect on training.",
    fix=(
        "Let forward name them, or pass remove_unused_columns=False and use them in the collator; "
        "if they are not needed, remove them from the data set."
    ),
)

LOOKED_AT = 8
"""Rows that show what kind of values a column has."""
OF_TOKENIZERS = frozenset(
    ("token_type_ids", "special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping")
)
"""Columns that tokenizers return and few models need."""
OF_PREPARATION = frozenset(("completion_mask", "assistant_masks", "seq_lengths"))
"""Columns that TRL turns into labels before it trains."""


def check_columns(trainer: Any) -> Iterator[Finding]:
    """Columns of numbers that the trainer removes because neither model nor collator names them."""
    dataset = trainer.train_dataset
    names = getattr(dataset, "column_names", None)
    if not names or not trainer.args.remove_unused_columns or is_stream(dataset):
        return
    trainer._set_signature_columns_if_needed()
    kept = set(trainer._signature_columns)
    rows = [dataset[row] for row in range(min(LOOKED_AT, len(dataset)))]
    is_trl = any(base.__module__.startswith("trl.") for base in type(trainer).__mro__)
    prepared = OF_TOKENIZERS | (OF_PREPARATION if is_trl else frozenset())
    lost = {
        name: what
        for name in names
        if name not in kept | prepared and (what := _meaning(name, rows, is_trl)) is not None
    }
    if lost:
        shown = ", ".join(f"{name!r} ({what})" for name, what in lost.items())
        model = type(trainer.model).__name__
        message = f"The trainer drops {shown}: {model}.forward has no such argument."
        yield COLUMNS_DROPPED.finding(message, column=next(iter(lost)))


def _meaning(name: str, rows: list[Mapping[str, Any]], is_trl: bool) -> str | None:
    """What a column holds if the model or the loss could use it; None for sources and counters.

    A text, a message or an id is what the tokens were made from, or names the row. One number per
    token, or a fraction per row, is a weight, a mask or a target.
    """
    values = [row[name] for row in rows]
    if all(_is_aligned(value, row) for value, row in zip(values, rows, strict=True)):
        if name == "attention_mask" and is_trl and all(all(value) for value in values):
            return None  # TRL makes its own, of ones
        return "one number per token"
    if all(isinstance(value, float) for value in values):
        return "one fraction per row"
    return None


def _is_aligned(value: Any, row: Mapping[str, Any]) -> bool:
    """Whether a value has one number for each token of the row."""
    ids = row.get("input_ids")
    if not isinstance(value, Sized) or isinstance(value, str) or not isinstance(ids, Sized):
        return False
    numbers: Any = value.tolist() if hasattr(value, "tolist") else value
    return len(value) == len(ids) > 1 and all(isinstance(n, int | float) for n in numbers)
