"""Does one more pad token change the outputs at the real positions?"""

from __future__ import annotations

from typing import Any

from surefit.checks.probes.probe_batch import Subject, differ, padded_by_one, tolerance
from surefit.findings import Finding, rule

PADDING_CHANGES_OUTPUTS = rule(
    "SF701",
    "warning",
    "padding changes the outputs",
    why="The outputs for a row depend on the length of the other rows in its batch.",
    fix="Let forward take attention_mask, and leave padded positions out of sums and means.",
)


def check_padding(subject: Subject) -> list[Finding]:
    """One more pad must change no logit and no loss; asked where rows differ in length."""
    import torch

    mask = subject.batch.get("attention_mask")
    if mask is None or mask.ndim != 2 or int(mask.sum(1).min()) == int(mask.sum(1).max()):
        return []  # rows of one length are never padded
    longer = padded_by_one(subject.batch, subject.fields)
    if longer["attention_mask"].shape == mask.shape:
        return []
    with torch.no_grad():
        short, long = subject.forward(subject.batch), subject.forward(longer)
    change = _change(short, long, mask)
    if change is None:
        before = subject.loss_sum(subject.batch)
        change = abs(subject.loss_sum(longer) - before) / max(abs(before), 1e-12)
    if change <= tolerance(next(subject.module.parameters())):
        return []
    return [
        PADDING_CHANGES_OUTPUTS.finding(
            f"One more pad changes the outputs by {change:.2g} of their size."
        )
    ]


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
