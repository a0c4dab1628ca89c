"""Is the loss of a batch the sum of the losses of its rows?"""

from __future__ import annotations

from surefit.findings import Finding, finding
from surefit.preflight.probes.subject import Subject


def check_additive(subject: Subject) -> list[Finding]:
    """Only then do 4 micro-batches of 2 rows give the gradient of one batch of 8."""
    if subject.num_rows < 2:
        return []
    whole = subject.loss_sum(subject.batch)
    parts = sum(subject.loss_sum(subject.row(place)) for place in range(subject.num_rows))
    change = abs(whole - parts) / max(abs(whole), abs(parts), 1e-12)
    dtype = next(subject.module.parameters()).dtype
    if change <= (1e-3 if dtype.itemsize >= 4 else 3e-2):
        return []
    message = (
        f"The loss of {subject.num_rows} rows together is {whole:.4g}, one by one {parts:.4g}."
    )
    return [finding("SF705", message)]
