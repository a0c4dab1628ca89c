"""Is the loss of a batch the sum of the losses of its rows?"""

from __future__ import annotations

from surefit.checks.probes.probe_batch import Subject
from surefit.findings import Finding, rule

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
