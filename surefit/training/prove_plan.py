"""The proof of a Plan: its largest batch goes through the real model before the first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from surefit.encode.store import Store
from surefit.errors import FindingError
from surefit.memory.predict_peak import Fit
from surefit.memory.prove import NotEnoughMemoryError, prove
from surefit.plan.fit_in_memory import make_workload, refuse
from surefit.plan.plan import Plan

if TYPE_CHECKING:
    from accelerate import Accelerator

Load = Callable[[Store, Any], Any]


def prove_plan(
    plan: Plan, accelerator: Accelerator, model: Any, optimizer: Any, load: Load, *, fresh: bool
) -> Fit:
    """Measure peak and time; raises the finding that the run does not fit."""
    parts, task, fit = plan.parts, plan.task, plan.fit
    assert parts is not None
    assert task is not None
    assert fit is not None
    work = make_workload(
        task, plan.config, plan.given, parts, parts.train, parts.evaluation, parts.batches
    )
    work = replace(work, load=load)
    fresh = fresh and plan.given.optimizer is None
    try:
        proof = prove(work, model, accelerator.backward, optimizer, fresh=fresh)
    except NotEnoughMemoryError:
        peak = max(fit.peak_bytes or 0, fit.limit.bytes)
        raise FindingError(refuse(fit, work, parts.encoder.max_length, peak)[1]) from None
    proved = replace(
        fit,
        measured_bytes=proof.peak_bytes,
        step_seconds=proof.step_seconds,
        total_seconds=proof.total_seconds,
    )
    if proved.fits is False:
        raise FindingError(refuse(proved, work, parts.encoder.max_length, proof.peak_bytes)[1])
    return proved
