"""Does a row's output depend on the other rows of its batch?"""

from __future__ import annotations

from surefit.checks.probes.probe_batch import Subject, differ, tolerance
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
