"""Does a row's output or loss depend on its batch: on padding, or on the other rows?"""

from __future__ import annotations

from typing import Any

from surefit.checks.probes.probe_batch import Subject, differ, padded_by_one, tolerance
from surefit.findings import Finding, rule

ROWS_NOT_INDEPENDENT = rule(
    "SF702",
    "warning",
    "rows of a batch influence each other",
    why="The outputs for a row depend on the other rows in its batch.",
    fix="Keep the batch axis apart: no sum, mean or normalisation over it.",
    accept="The model is trained as it is.",
)


def check_independence(subject: Subject) -> list[Finding]:
    """A row alone, at the same padded length, must give what it gives among others."""
    import torch

    if subject.num_rows < 2:
        return []
    with torch.no_grad():
        together = getattr(subject.forward(subject.batch), "logits", None)
        if together is None or len(together) != subject.num_rows:
            return []
        alone = subject.forward(subject.row(0)).logits
    if alone.shape[1:] != together.shape[1:]:
        return []
    change = differ(alone, together[:1])
    if change <= tolerance(together):
        return []
    message = (
        f"The first row's outputs change by {change:.2g} of their size when it is alone in its "
        "batch."
    )
    return [ROWS_NOT_INDEPENDENT.finding(message)]


LOSS_NOT_ADDITIVE = rule(
    "SF705",
    "warning",
    "the loss is not a sum over rows",
    why=(
        "Accumulated micro-batches then give another gradient than one batch, and the evaluation "
        "loss depends on the batch size."
    ),
    fix="Return the sum over targets and their count, and let no row's loss depend on others.",
    accept="The loss is used as it is.",
)


def check_additive(subject: Subject) -> list[Finding]:
    """Only then do 4 micro-batches of 2 rows give the gradient of one batch of 8."""
    if subject.num_rows < 2:
        return []
    whole = subject.loss_sum(subject.tensors())
    parts = sum(subject.loss_sum(subject.row(place)) for place in range(subject.num_rows))
    change = abs(whole - parts) / max(abs(whole), abs(parts), 1e-12)
    if change <= _tolerance(subject):
        return []
    message = (
        f"The loss of {subject.num_rows} rows together is {whole:.4g}, one by one {parts:.4g}."
    )
    return [LOSS_NOT_ADDITIVE.finding(message)]


def _tolerance(subject: Subject) -> float:
    """A causal module's own mean leaves out each row's first label, which the count does not."""
    if subject.causal:
        return 0.05
    return 1e-3 if next(subject.module.parameters()).dtype.itemsize >= 4 else 3e-2


PADDING_CHANGES_OUTPUTS = rule(
    "SF701",
    "warning",
    "padding changes the outputs",
    why="The outputs for a row depend on the length of the other rows in its batch.",
    fix=(
        "Let forward take attention_mask, and leave padded positions out of sums and means; or "
        "train with batch_size=1. Evaluation and prediction batch rows of equal length."
    ),
    accept="The model is trained with padded batches as it is.",
)


def check_padding(subject: Subject) -> list[Finding]:
    """Padding must change no logit and no loss."""
    change = padding_effect(subject)
    if change <= tolerance(next(subject.module.parameters())):
        return []
    message = f"Padding changes the outputs of a row by {change:.2g} of their size."
    return [PADDING_CHANGES_OUTPUTS.finding(message)]


def padding_effect(subject: Subject) -> float:
    """By how much padding changes the outputs; 0 where rows have one length and are never padded.

    Compares the batch with one more pad token, and each padded row with itself without padding.
    """
    import torch

    mask = subject.batch.get("attention_mask")
    if mask is None or mask.ndim != 2 or int(mask.sum(1).min()) == int(mask.sum(1).max()):
        return 0.0
    longer = padded_by_one(subject.batch, subject.fields)
    if longer["attention_mask"].shape == mask.shape:
        return 0.0
    with torch.no_grad():
        short = subject.forward(subject.batch)
        try:
            change = _change(short, subject.forward(longer), mask)
        except (RuntimeError, IndexError, ValueError):  # no room for one more position
            change = 0.0
        changes = [_change_unpadded(subject, place) for place in range(len(subject.alone))]
    if change is None:
        before = subject.loss_sum(subject.batch)
        change = abs(subject.loss_sum(longer) - before) / max(abs(before), 1e-12)
    return max(change, *changes, 0.0)


def _change_unpadded(subject: Subject, place: int) -> float:
    """By how much the logits of one row differ with and without its padding."""
    mask = subject.batch["attention_mask"]
    if int(mask[place].sum()) == mask.shape[1]:
        return 0.0
    padded, plain = (
        getattr(subject.forward(batch), "logits", None)
        for batch in (subject.row(place), subject.alone[place])
    )
    if padded is None or plain is None or padded.ndim != plain.ndim:
        return 0.0
    if plain.ndim > 2:  # (1, T, V): the positions that are not padding
        padded = padded[:, : plain.shape[1]]
    return differ(padded, plain) if padded.shape == plain.shape else 0.0


def _change(short: Any, long: Any, mask: Any) -> float | None:
    """By how much the logits of real positions differ; None where there are none to compare."""
    one, other = getattr(short, "logits", None), getattr(long, "logits", None)
    if one is None or other is None:
        return None
    if one.shape == other.shape:
        return differ(one, other)
    if one.shape[:2] != mask.shape or other.shape[1] != mask.shape[1] + 1:
        return None
    real = mask.bool()
    return differ(one[real], other[:, :-1][real])
