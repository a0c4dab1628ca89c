"""The probes on someone else's model: its own loss, on a few rows of its own batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from surefit.batches.field import IGNORE_INDEX, well_known_fields
from surefit.checks.causal_labels import KnownTokens
from surefit.checks.probes.model_probes import run_probes
from surefit.checks.probes.model_profile import ModelProfile, differ, tolerance
from surefit.checks.trainer_batches import TrainerBatch, find_sequences
from surefit.checks.trainer_rows import is_causal
from surefit.errors import describe_error
from surefit.explainer import explain
from surefit.findings import Finding, rule
from surefit.models.transformers_models import MODEL_FAILED
from surefit.speed.numerics import preserved_state

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
class ProbedOutputs:
    """What a probe reads of a model's outputs."""

    logits: Any = None
    loss: Any = None


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
        return [_describe_failure(error)]
    found = _check_packing(trainer, tensors, batch) if flat else []
    skipped = ("additive",) if has_own_loss(trainer) or "labels" not in rows else ()
    return found + run_probes(profile, skipped=skipped)


def _first_rows(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A few rows; of preference data, labels in place of the mask of its answers."""
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
    """The first sequences of a batch without padding as a padded batch."""
    import torch

    sequences = find_sequences(batch, known.pad)[:PROBED_ROWS]
    longest = max(len(each.ids) for each in sequences)
    shape = (len(sequences), longest)
    ids, labels = np.full(shape, known.pad or 0), np.full(shape, IGNORE_INDEX)
    mask = np.zeros(shape, np.int64)
    for place, each in enumerate(sequences):
        ids[place, : len(each.ids)] = each.ids
        labels[place, : len(each.ids)] = each.labels if each.labels is not None else each.ids
        mask[place, : len(each.ids)] = 1
    columns = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return {name: torch.from_numpy(value).to(device) for name, value in columns.items()}


def _check_packing(trainer: Any, tensors: Mapping[str, Any], batch: TrainerBatch) -> list[Finding]:
    """Each row of a batch without padding must give the logits that it gives alone."""
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
    """Whether the loss is the user's own function or method."""
    return trainer.compute_loss_func is not None or not is_of_library(type(trainer).compute_loss)


def is_of_library(method: Any) -> bool:
    """Whether a method is that of transformers or TRL."""
    return str(getattr(method, "__module__", "")).split(".")[0] in ("transformers", "trl")


def _profile(trainer: Any, rows: Mapping[str, Any], known: KnownTokens) -> ModelProfile:
    """The trainer's model and loss."""
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


def _own_outputs(trainer: Any, batch: Mapping[str, Any]) -> ProbedOutputs:
    """Outputs with the loss that the trainer computes for a batch."""
    labels = batch.get("labels")
    count = int((labels != IGNORE_INDEX).sum()) if labels is not None else len(batch)
    loss, outputs = trainer.compute_loss(
        trainer.model, dict(batch), return_outputs=True, num_items_in_batch=count
    )
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else None
    return ProbedOutputs(getattr(outputs, "logits", logits), loss)


def _sum_of_mean(causal: bool, outputs: Any, batch: Mapping[str, Any]) -> tuple[Any, int]:
    """The model's own mean loss as a sum over the targets that it counts.

    A causal model has no prediction for the first token of a row.
    """
    labels = batch.get("labels")
    if labels is None or labels.ndim < 2 or labels.is_floating_point():
        count = len(next(iter(batch.values())))
    else:
        count = int((labels[:, 1 if causal else 0 :] != IGNORE_INDEX).sum())
    loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs.loss
    return (loss * count if count else loss.new_zeros(())), count


def _describe_failure(error: Exception) -> Finding:
    cause = explain(error)
    message = f"The model fails on a batch of the trainer: {describe_error(error)[:300]}"
    if cause.known:
        message += f" Cause: {cause.title} ({cause.code}). {' '.join(cause.derived)}".rstrip()
    return MODEL_FAILED.finding(message, fix=cause.fix or "")
