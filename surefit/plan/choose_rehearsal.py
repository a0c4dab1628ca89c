"""Which phases of a run are rehearsed before step 1: all on request, else the cheap ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefit.config import RunConfig
from surefit.memory.predict_peak import Fit
from surefit.pipeline.pipeline import Job

if TYPE_CHECKING:
    from surefit.plan.disk import DiskUse

FREE_SECONDS, FREE_SHARE = 2.0, 0.01
"""A phase is cheap if it takes less than either: seconds, or a share of the predicted time."""
BYTES_PER_SECOND = 150e6
"""Assumed of a disk that is written to and read back."""
FEW_TOKENS = 4
"""Tokens that are generated where the rehearsal is to be cheap."""


@dataclass(frozen=True)
class Rehearsal:
    """The phases that are done once before the first step, and why others are not."""

    phases: Sequence[str]
    left_out: Mapping[str, str]
    true_size: bool
    """Whether every phase is done at its true size; else on one batch, with a few new tokens."""


def choose_rehearsal(job: Job, fit: Fit | None, disk: DiskUse, config: RunConfig) -> Rehearsal:
    """Choose by the predicted time; an evaluation of step 0 needs no rehearsal."""
    step, total = (fit.step_seconds or 0.0, fit.total_seconds or 0.0) if fit else (0.0, 0.0)
    forward, tokens = step / 3 / max(job.batches.grad_accum, 1), FEW_TOKENS * bool(job.generates)
    seconds = {
        "evaluation": forward * (1 + tokens),
        "checkpoint": disk.checkpoint_bytes / BYTES_PER_SECOND,
        "model": disk.parts["model"] / BYTES_PER_SECOND,
        "report": 0.0,
    }
    if not len(job.validation):
        del seconds["evaluation"]
    left_out = {}
    if not config.rehearse:
        budget = max(FREE_SECONDS, FREE_SHARE * total)
        left_out = {k: f"would take about {s:.0f} s" for k, s in seconds.items() if s > budget}
        if config.eval_at_start and "evaluation" in seconds:
            left_out["evaluation"] = "step 0 is evaluated"
    return Rehearsal([k for k in seconds if k not in left_out], left_out, config.rehearse)
