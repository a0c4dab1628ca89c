"""Which phases of a run are rehearsed before step 1: all on request, else the cheap ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from surefit.memory.predict_peak import Fit
from surefit.models.lora import is_adapted
from surefit.pipeline.job import Job
from surefit.plan.predict_disk import DiskUse

FREE_SECONDS, FREE_SHARE = 2.0, 0.01
"""A phase is cheap if it takes less than either: seconds, or a share of the predicted time."""
BYTES_PER_SECOND = 150e6
"""Assumed of a disk that is written to and read back."""
FEW_TOKENS = 4
"""Tokens that are generated where the rehearsal is to be cheap."""
WHOLE_ONLY = "only with rehearse=true"


@dataclass(frozen=True)
class Rehearsal:
    """The phases that are done once before the first step, and why others are not."""

    phases: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool = False
    """Whether every phase is done at its true size; else on one batch, with a few new tokens."""

    def as_dict(self) -> dict[str, Any]:
        """The section `rehearsal` of the plan."""
        return {
            "phases": list(self.phases),
            "left_out": dict(self.left_out),
            "true_size": self.is_whole,
        }


def choose_rehearsal(
    job: Job,
    fit: Fit | None,
    disk: DiskUse,
    *,
    whole: bool,
    evaluates_first: bool,
    divided: bool = False,
) -> Rehearsal:
    """Choose by the predicted time; `evaluates_first` means that step 0 is evaluated anyway.

    A model that is divided over processes is not loaded whole to try it.
    """
    reasons = _needless(job, evaluates_first)
    if divided:
        for phase in ("reloading the model", "export"):
            reasons.setdefault(phase, "the model is divided over processes")
    if not whole:
        step_seconds, total_seconds = 0.0, 0.0
        if fit is not None:
            step_seconds, total_seconds = fit.step_seconds or 0.0, fit.total_seconds or 0.0
        budget = max(FREE_SECONDS, FREE_SHARE * total_seconds)
        for phase, seconds in _cost(job, disk, step_seconds).items():
            if seconds > budget:
                reasons.setdefault(phase, f"would take about {seconds:.0f} s")
        reasons = {"reloading the model": WHOLE_ONLY, "export": WHOLE_ONLY, **reasons}
    phases = tuple(phase for phase in PHASES if phase not in reasons)
    shown = {phase: why for phase, why in reasons.items() if why}
    return Rehearsal(phases, shown, whole)


PHASES = ("evaluation", "checkpoint", "model", "reloading the model", "export", "report")


def _needless(job: Job, evaluates_first: bool) -> dict[str, str]:
    """Phases that this run does not have; an empty reason is not shown."""
    found: dict[str, str] = {}
    if not len(job.validation):
        found["evaluation"] = ""
    elif evaluates_first:
        found["evaluation"] = "step 0 is evaluated"
    if not is_adapted(job.pipeline.module):
        found["export"] = ""  # a copy of the model's folder
    return found


def _cost(job: Job, disk: DiskUse, step_seconds: float) -> dict[str, float]:
    """Seconds of each phase in its cheap form."""
    stay = disk.parts["checkpoints"]
    forward = step_seconds / 3 / max(job.batches.grad_accum, 1)
    tokens = FEW_TOKENS if job.generates is not None else 0
    return {
        "evaluation": forward * (1 + tokens),
        "checkpoint": stay / max(disk.num_kept, 1) / BYTES_PER_SECOND,
        "model": disk.parts["model"] / BYTES_PER_SECOND,
    }
