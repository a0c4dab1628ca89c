"""Can the model overfit one batch?"""

from __future__ import annotations

from surefit.checks.probes.probe_batch import Subject
from surefit.findings import Finding, rule

CANNOT_OVERFIT = rule(
    "SF707",
    "warning",
    "the model cannot overfit one batch",
    why="A model that cannot fit a handful of rows will hardly learn from thousands.",
    fix="Check that the loss depends on the inputs, the rate, and which layers are frozen.",
    accept="The model is trained as it is.",
)


NUM_STEPS = 40
RATE = 1e-3
ENOUGH = 0.7


def check_overfit(subject: Subject) -> list[Finding]:
    """Some steps on one batch must bring its loss well down; the weights are put back."""
    import torch

    trained = [p for p in subject.module.parameters() if p.requires_grad]
    kept = [parameter.detach().clone() for parameter in trained]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    first = best = subject.loss_sum(subject.batch)
    try:
        for _ in range(NUM_STEPS):
            total, count = subject.loss(subject.forward(subject.batch), subject.batch)
            best = min(best, float(total.detach()))
            if best <= ENOUGH * first:
                return []
            optimizer.zero_grad()
            (total / (float(count) or 1.0)).backward()
            optimizer.step()
    finally:
        with torch.no_grad():
            for parameter, value in zip(trained, kept, strict=True):
                parameter.copy_(value)
                parameter.grad = None
    message = (
        f"{NUM_STEPS} steps on one batch of {subject.num_rows} rows brought its loss from "
        f"{first:.4g} to {best:.4g} only."
    )
    return [CANNOT_OVERFIT.finding(message)]
