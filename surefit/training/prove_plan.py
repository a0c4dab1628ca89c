"""The proof of a Plan: its largest batch goes through the real model before the first step."""

from __future__ import annotations

from dataclasses import replace

from surefit.data.cache import use_cache
from surefit.errors import FindingError
from surefit.memory.predict_peak import Fit
from surefit.memory.prove import NotEnoughMemoryError, prove
from surefit.plan.fit_in_memory import refuse
from surefit.plan.plan import Plan
from surefit.training.engine import (
    Engine,
    deterministic_algorithms,
    make_accelerator,
    make_engine,
    make_optimizer,
)


def measure_plan(plan: Plan) -> Plan:
    """The plan with its peak and time measured by a real step; nothing is kept of the step."""
    assert plan.job is not None
    assert plan.model is not None
    config, module = plan.config, plan.job.pipeline.module
    accelerator = make_accelerator(config.precision)
    optimizer = make_optimizer(module, plan.model.lr, config.weight_decay, plan.objects.optimizer)
    try:
        with use_cache(config.cache), deterministic_algorithms(config.deterministic):
            fit = prove_plan(plan, make_engine(accelerator, module, optimizer), fresh=True)
    except FindingError as error:
        return plan.found(error.findings)
    return replace(plan, fit=fit)


def prove_plan(plan: Plan, engine: Engine, *, fresh: bool) -> Fit:
    """Measure peak and time; raises the finding that the run does not fit."""
    job, fit = plan.job, plan.fit
    assert job is not None
    assert fit is not None
    fresh = fresh and plan.objects.optimizer is None
    backward = engine.accelerator.backward
    try:
        proof = prove(job, engine.model, backward, engine.plain_optimizer, fresh=fresh)
    except NotEnoughMemoryError:
        peak = max(fit.peak_bytes or 0, fit.limit.bytes)
        raise FindingError(refuse(fit, job, peak)[1]) from None
    proved = replace(
        fit,
        measured_bytes=proof.peak_bytes,
        step_seconds=proof.step_seconds,
        total_seconds=proof.total_seconds,
    )
    if proved.fits is False:
        raise FindingError(refuse(proved, job, proof.peak_bytes)[1])
    return proved
