"""The measured step of a plan: its peak and time replace the prediction, or refuse the run."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace

from surefit.data.cache import use_cache
from surefit.errors import FindingError
from surefit.findings import Finding
from surefit.memory.predict_peak import Fit
from surefit.memory.process_memory import MemoryGuard
from surefit.memory.prove import NotEnoughMemoryError, prove
from surefit.plan.fit_in_memory import refuse
from surefit.plan.plan import Plan
from surefit.processes import gather, together
from surefit.speed.numerics import deterministic_algorithms
from surefit.training.engine import Engine, make_accelerator, make_engine

Trial = Callable[[Plan, Engine], list[Finding]]
"""Tries something else with the engine, and returns what it found."""


def measure_plan(plan: Plan, trial: Trial | None = None) -> Plan:
    """The plan with its peak and time measured by a real step; nothing is kept of the step.

    `trial` is called after it, where the run fits.
    """
    assert plan.job is not None
    assert plan.model is not None
    assert plan.fit is not None
    config, module = plan.config, plan.job.pipeline.module
    accelerator = make_accelerator(config.precision)
    optimizer = plan.job.optimizer.make(module)
    guard = MemoryGuard(plan.fit.limit)
    try:
        with (
            use_cache(config.cache),
            deterministic_algorithms(config.deterministic),
            guard.enforced(),
        ):
            engine = make_engine(accelerator, module, optimizer, frozen=plan.job.frozen_dtype)
            plan = replace(plan, fit=measure_step(plan, engine, fresh=True))
            return plan.found(trial(plan, engine)) if trial is not None else plan
    except FindingError as error:
        return plan.found(error.findings)


def measure_step(plan: Plan, engine: Engine, *, fresh: bool) -> Fit:
    """Measure peak and time in all processes; if the run does not fit in one, none trains.

    Each process measures for itself, but a sharded model is run by all together: if one of them
    fails then, its end is what ends the others.
    """
    job, fit = plan.job, plan.fit
    assert job is not None
    assert fit is not None
    fresh = fresh and job.optimizer.passed is None
    backward, optimizer = engine.accelerator.backward, engine.plain_optimizer
    bounded = MemoryGuard(fit.limit).is_active
    proof = None
    with nullcontext() if engine.is_sharded else together("measuring the largest micro-batch"):
        with suppress(NotEnoughMemoryError):
            proof = prove(job, backward, optimizer, fresh=fresh, bounded=bounded)
        if proof is None:
            gc.collect()  # the tensors of the step that failed, before options are traced
            raise FindingError(refuse(fit, job, None)[1])
        if engine.is_sharded:  # all refuse, or none
            proof = replace(proof, peak_bytes=max(gather(proof.peak_bytes)))
        proved = replace(
            fit,
            measured_bytes=proof.peak_bytes,
            step_seconds=proof.step_seconds,
            total_seconds=proof.total_seconds,
        )
        if proved.fits is False:
            raise FindingError(refuse(proved, job, proof.peak_bytes)[1])
    reducer = getattr(engine.model, "reducer", None)
    if reducer is not None:  # DDP took the measured gradients for those of the first step
        reducer._reset_state()
    return proved
