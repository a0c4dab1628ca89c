"""Other people's runs: an HF Trainer (or TRL's), checked as it is, nothing to migrate.

Every row goes through the trainer's own collator in the order of the data set, so a fault has a
row number; then the probes are run on its model with its own loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from surefit.batches.collate import collate
from surefit.batches.field import IGNORE_INDEX, well_known_fields
from surefit.checks.causal_labels import KnownTokens
from surefit.checks.ledger import Ledger
from surefit.checks.module_checks import NOTHING_TRAINABLE, check_trainable
from surefit.checks.probes.model_probes import run_probes
from surefit.checks.probes.model_profile import ModelProfile, differ, tolerance
from surefit.checks.trainer_rows import (
    STREAMED_ROWS,
    RowTally,
    TrainerBatch,
    describe_failure,
    find_sequences,
    is_causal,
    is_stream,
    iter_batches,
)
from surefit.errors import FindingError, UsageError
from surefit.findings import Finding, has_errors, note, part_notes, rule
from surefit.models.transformers_models import MODEL_FAILED
from surefit.speed.numerics import preserved_state

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


PACKED_ROWS_MIX = rule(
    "SF726",
    "error",
    "packed rows see each other",
    why=(
        "The batch packs rows, and the model's attention does not keep them apart: each "
        "row is predicted from the rows before it."
    ),
    fix=(
        "Load the model with attn_implementation='sdpa' or a flash attention that reads "
        "position_ids, or set packing=False and padding_free=False."
    ),
)

PROBED_ROWS = 4
PACKED_TOKENS = 512
"""Tokens of a batch without padding that are compared."""


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
        """Return the checkup in the form of a plan; what is not known of it is null."""
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
    tokenizer = _find_tokenizer(trainer)
    known = _known_tokens(trainer, tokenizer)
    tally = RowTally(trainer.model, known, _find_bos(trainer, tokenizer))
    richest: TrainerBatch | None = None
    failed: list[Finding] = []
    try:
        for batch in iter_batches(trainer):
            tally.add(batch)
            ragged = _is_ragged(batch.tensors)
            if richest is None or (ragged and not _is_ragged(richest.tensors)):
                richest = batch
    except FindingError as error:
        failed = [*error.findings]
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


def _find_tokenizer(trainer: Any) -> Any:
    """Return the tokenizer of a trainer: its processing class, or what its collator pads with."""
    collator = trainer.data_collator
    holders = [getattr(trainer, "processing_class", None)]
    holders += [getattr(collator, n, None) for n in ("tokenizer", "processing_class", "processor")]
    for holder in holders:
        tokenizer = getattr(holder, "tokenizer", holder)
        if getattr(tokenizer, "eos_token_id", None) is not None:
            return tokenizer
    return None


def _known_tokens(trainer: Any, tokenizer: Any) -> KnownTokens:
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


def _find_bos(trainer: Any, tokenizer: Any) -> int | None:
    """Return the token that begins a text."""
    holder = tokenizer if tokenizer is not None else getattr(trainer.model, "config", None)
    bos = getattr(holder, "bos_token_id", None)
    return bos if isinstance(bos, int) else None


def _ids(value: Any) -> Iterable[int]:
    if value is None:
        return ()
    return [int(value)] if isinstance(value, int) else [int(each) for each in value]


def _is_ragged(batch: Mapping[str, Any]) -> bool:
    """Return whether the rows of a batch have different lengths."""
    mask = batch.get("attention_mask")
    return mask is not None and mask.ndim == 2 and bool((mask.sum(1) != mask.shape[1]).any())


def _check_optimizer(trainer: Any) -> Iterator[Finding]:
    """Yield an optimizer passed in must hold what is trained."""
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
    """Return what a column holds if the model or the loss could use it; None for sources and
    counters.

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
    """Return whether a value has one number for each token of the row."""
    ids = row.get("input_ids")
    if not isinstance(value, Sized) or isinstance(value, str) or not isinstance(ids, Sized):
        return False
    numbers: Any = value.tolist() if hasattr(value, "tolist") else value
    return len(value) == len(ids) > 1 and all(isinstance(n, int | float) for n in numbers)


def probe_trainer(trainer: Any, batch: TrainerBatch, known: KnownTokens) -> list[Finding]:
    """What the probes find on a few rows of a batch; first, whether the model takes it at all."""
    device = trainer.args.device
    tensors = {name: value.to(device) for name, value in batch.tensors.items()}
    flat = batch.positions is not None
    rows = _pad_again(batch, known, device) if flat else _first_rows(tensors)
    profile = _profile(trainer, rows, known)
    try:
        _ = profile.together
    except Exception as error:
        message, fix = describe_failure("The model fails on a batch of the trainer", error)
        return [MODEL_FAILED.finding(message, fix=fix)]
    found = _check_packing(trainer, tensors, batch) if flat else []
    skipped = ("additive",) if has_own_loss(trainer) or "labels" not in rows else ()
    return found + run_probes(profile, skipped=skipped)


def _first_rows(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return a few rows; of preference data, labels in place of the mask of its answers."""
    lead = tensors["input_ids"] if "input_ids" in tensors else next(iter(tensors.values()))
    rows = {
        name: value[:PROBED_ROWS]
        for name, value in tensors.items()
        if value.ndim and len(value) == len(lead)
    }
    completion = rows.pop("completion_mask", None)
    if completion is not None and "labels" not in rows:
        ids = rows["input_ids"]
        labels = ids.masked_fill(completion == 0, IGNORE_INDEX)
        rows = {"input_ids": ids, "attention_mask": rows["attention_mask"], "labels": labels}
    return rows


def _pad_again(batch: TrainerBatch, known: KnownTokens, device: Any) -> dict[str, Any]:
    """Return the first sequences of a batch without padding as a padded batch."""
    import torch

    rows = [
        {"input_ids": each.ids, "labels": each.ids if each.labels is None else each.labels}
        for each in find_sequences(batch, known.pad)[:PROBED_ROWS]
    ]
    columns = collate(rows, well_known_fields(known.pad or 0))
    return {name: torch.from_numpy(value).to(device) for name, value in columns.items()}


def _check_packing(trainer: Any, tensors: Mapping[str, Any], batch: TrainerBatch) -> list[Finding]:
    """Return each row of a batch without padding must give the logits that it gives alone."""
    import torch

    positions = batch.positions
    assert positions is not None
    starts = [*np.flatnonzero(positions == 0).tolist(), len(positions)]
    ends = [end for end in starts[1:] if end <= PACKED_TOKENS][: PROBED_ROWS - 1]
    if len(ends) < 2:
        return []
    cut = {name: tensors[name][:, : ends[-1]] for name in ("input_ids", "position_ids")}
    with torch.no_grad(), preserved_state(trainer.model):
        together = getattr(trainer.model(**cut), "logits", None)
        if together is None:
            return []
        alone = trainer.model(input_ids=cut["input_ids"][:, ends[-2] : ends[-1]]).logits
    change = differ(together[:, ends[-2] : ends[-1]], alone)
    if change <= tolerance(together):
        return []
    message = (
        f"Row {batch.rows[0]} and the rows packed with it: the outputs of a packed row change by "
        f"{change:.2g} of their size when it is alone."
    )
    return [PACKED_ROWS_MIX.finding(message, row=batch.rows[0])]


def has_own_loss(trainer: Any) -> bool:
    """Return whether the loss is the user's own function or method."""
    return trainer.compute_loss_func is not None or not is_of_library(type(trainer).compute_loss)


def is_of_library(method: Any) -> bool:
    """Return whether a method is that of transformers or TRL."""
    return str(getattr(method, "__module__", "")).split(".")[0] in ("transformers", "trl")


def _profile(trainer: Any, rows: Mapping[str, Any], known: KnownTokens) -> ModelProfile:
    """Return the trainer's model and loss."""
    labels = rows.get("labels")
    ids = rows.get("input_ids")
    tokens = labels is not None and ids is not None and labels.shape == ids.shape
    causal = tokens and is_causal(trainer.model)
    return ModelProfile(
        trainer.model,
        rows,
        forward=partial(_own_outputs, trainer)
        if has_own_loss(trainer)
        else lambda batch: trainer.model(**batch),
        loss=partial(_sum_of_mean, causal),
        fields=well_known_fields(known.pad or 0),
        causal=causal,
    )


def _own_outputs(trainer: Any, batch: Mapping[str, Any]) -> Any:
    """Outputs with the loss that the trainer computes for a batch."""
    labels = batch.get("labels")
    count = int((labels != IGNORE_INDEX).sum()) if labels is not None else len(batch)
    loss, outputs = trainer.compute_loss(
        trainer.model, dict(batch), return_outputs=True, num_items_in_batch=count
    )
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else None
    return SimpleNamespace(logits=getattr(outputs, "logits", logits), loss=loss)


def _sum_of_mean(causal: bool, outputs: Any, batch: Mapping[str, Any]) -> tuple[Any, int]:
    """Return the model's own mean loss as a sum over the targets that it counts.

    A causal model has no prediction for the first token of a row.
    """
    labels = batch.get("labels")
    if labels is None or labels.ndim < 2 or labels.is_floating_point():
        count = len(next(iter(batch.values())))
    else:
        count = int((labels[:, 1 if causal else 0 :] != IGNORE_INDEX).sum())
    loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs.loss
    return (loss * count if count else loss.new_zeros(())), count
