"""The measured step: its peak memory and time replace the prediction, or refuse the run.

A run that exceeds its memory fails here, and not hours later. The step has learning rate 0 and
restores buffers, random states and optimizer: training is the same as without it, bit for bit.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.data.cache import use_cache
from surefit.errors import FindingError
from surefit.findings import Finding
from surefit.memory.predict_peak import Fit, device_seconds, total_seconds
from surefit.memory.process_memory import MemoryGuard, is_out_of_memory, peak_bytes, reset_peak
from surefit.models.named_modules import MakeNamed
from surefit.models.sharding import is_sharded, reshard
from surefit.pipeline.pipeline import Job
from surefit.pipeline.step import drop_gradients, forward_backward, restoring_state
from surefit.plan.fit_in_memory import refuse
from surefit.plan.plan import Plan
from surefit.processes import gather, together
from surefit.speed.compiling import not_compiled
from surefit.speed.numerics import deterministic_algorithms
from surefit.training.engine import Engine, make_accelerator, make_engine

if TYPE_CHECKING:
    from torch import nn

SURE_SHARE = 0.5
"""Share of free memory up to which a predicted peak is taken as it is."""
Trial = Callable[[Plan, Engine], list[Finding]]
"""Tries something else with the engine, and returns what it found."""


def measure_plan(plan: Plan, trial: Trial | None = None) -> Plan:
    """Return the plan with its peak and time measured by a real step; nothing is kept of the step.

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


def needs_measuring(plan: Plan) -> bool:
    """Return whether a step may take more memory than the run has.

    Traces of transformers models are close to what is measured (docs/fit.md), those of other
    modules may miss what their code does with real numbers.
    """
    fit, model = plan.fit, plan.model
    assert fit is not None
    assert model is not None
    if fit.peak_bytes is None or model.source.auto_classes is None or plan.config.fit == "measured":
        return True
    is_given = fit.limit.on_device or fit.limit.source == "max_memory_gb"
    return is_given or fit.peak_bytes > SURE_SHARE * fit.limit.bytes


def measure_step(plan: Plan, engine: Engine, *, fresh: bool) -> Fit:
    """Measure peak and time in all processes; if the run does not fit in one, none trains.

    Each process measures for itself, but a sharded model is run by all together: if one of them
    fails then, its end is what ends the others.
    """
    job, fit = plan.job, plan.fit
    assert job is not None
    assert fit is not None
    passed = job.optimizer.passed
    fresh = fresh and (passed is None or (isinstance(passed, MakeNamed) and passed.is_fresh))
    backward, optimizer = engine.accelerator.backward, engine.plain_optimizer
    bounded = MemoryGuard(fit.limit).is_active
    proved = None
    with nullcontext() if engine.is_sharded else together("measuring the largest micro-batch"):
        with suppress(NotEnoughMemoryError):
            proved = prove(job, fit, backward, optimizer, fresh=fresh, bounded=bounded)
        if proved is None:
            gc.collect()  # the tensors of the step that failed, before options are traced
            raise FindingError(refuse(fit, job, None)[1])
        if engine.is_sharded:  # all refuse, or none
            proved = replace(proved, measured_bytes=max(gather(proved.measured_bytes or 0)))
        if proved.fits is False:
            raise FindingError(refuse(proved, job, proved.measured_bytes)[1])
    reducer = getattr(engine.model, "reducer", None)
    if reducer is not None:  # DDP took the measured gradients for those of the first step
        reducer._reset_state()
    return proved


WARM_UP_SECONDS, MAX_PASSES = 0.25, 3
"""A pass is repeated until either is reached, because the first one is slower."""
COLD_SECONDS = 5.0
"""A first pass that takes less, or runs on an accelerator, is never the only one: it may have to
load kernels or to compile."""


class NotEnoughMemoryError(Exception):
    """The measured step ran out of memory."""


def prove(
    job: Job,
    fit: Fit,
    backward: Callable[[Any], None],
    optimizer: Any,
    *,
    fresh: bool,
    bounded: bool = False,
) -> Fit:
    """Return the fit with the measured peak and time of a step, and the time of the run from it.

    The largest and a median micro-batch are run; raise NotEnoughMemoryError if that fails.

    `fresh` means that the optimizer is surefit's own and has no state yet. Its state is created for
    the step, so that the peak is that of later steps, and cleared afterwards. `bounded` means that
    allocations beyond the limit fail.

    The module itself is run, not DDP around it: the number of passes goes by the clock, which
    processes do not share, and each process measures its own memory. A sharded module
    is run by all of them, as often in each.
    """
    worst = job.batch(job.batches.worst_rows(job.epochs))
    median = job.batch(job.batches.median_rows())
    _reset_peak()
    try:
        with restoring_state(job.pipeline.module, optimizer, fresh):
            module = job.pipeline.module
            update_seconds = create_optimizer_state(module, optimizer) if fresh else 0.0
            forward, whole = _time_passes(job, worst, backward)
            _, median_whole = _time_passes(job, median, backward)
            token_seconds = _decode_seconds(job, worst) if job.generates else 0.0
    except Exception as error:
        if not is_out_of_memory(error, bounded=bounded):
            raise
        raise NotEnoughMemoryError(str(error)) from error
    most = int(job.batches.positions().max())
    fewer = int(np.median(job.batches.positions()))
    slope, fixed = _line(fewer, median_whole, most, whole)
    total = total_seconds(job, slope, fixed, forward / most, update_seconds, token_seconds)
    step_seconds = whole * job.batches.grad_accum + update_seconds
    return replace(
        fit, measured_bytes=_peak_bytes(), step_seconds=step_seconds, total_seconds=total
    )


def _line(fewer: int, less: float, most: int, more: float) -> tuple[float, float]:
    """Return seconds per position and per micro-batch, from two measured micro-batches.

    >>> _line(10, 2.0, 30, 4.0)
    (0.1, 1.0)
    >>> _line(30, 4.0, 30, 4.0)
    (0.13333333333333333, 0.0)
    """
    if most <= fewer or more <= less:
        return more / max(most, 1), 0.0
    slope = (more - less) / (most - fewer)
    fixed = less - slope * fewer
    return (slope, fixed) if fixed >= 0 else (more / most, 0.0)


def _time_passes(job: Job, batch: Any, backward: Callable[[Any], None]) -> tuple[float, float]:
    """Return the shortest time of the forward pass, and of forward and backward together."""
    import torch

    pipeline, middle = job.pipeline, 0.0

    def timed(loss: Any) -> None:
        nonlocal middle
        middle = device_seconds()
        backward(loss)

    began, forward, whole = device_seconds(), float("inf"), float("inf")
    for number in range(MAX_PASSES):
        if job.batches.grad_accum == 1:
            drop_gradients(pipeline.module)
        start = device_seconds()
        forward_backward(pipeline.call, pipeline.loss, pipeline.module, batch, backward=timed)
        end = device_seconds()
        middle = middle or end  # a training_step of the user's own has no one forward pass
        forward, whole = min(forward, middle - start), min(whole, end - start)
        is_cold = number == 0 and (end - start < COLD_SECONDS or torch.accelerator.is_available())
        if end - began > WARM_UP_SECONDS and not is_cold and not is_sharded(pipeline.module):
            break
    drop_gradients(pipeline.module)
    return forward, whole


def _decode_seconds(job: Job, batch: Any) -> float:
    """Return the time to generate one more token: a forward pass on one position per row."""
    import torch

    module: Any = job.pipeline.module
    module.eval()
    best = float("inf")
    ids = batch["input_ids"].reshape(-1, 1)[: job.batches.batch_size]
    arguments = {"input_ids": ids}
    if "decoder_input_ids" in batch:
        arguments["decoder_input_ids"] = ids
    with torch.no_grad(), not_compiled(module):
        for _ in range(MAX_PASSES):
            began = device_seconds()
            module(**arguments)
            best = min(best, device_seconds() - began)
    module.train()
    reshard(module)
    return best


def create_optimizer_state(module: nn.Module, optimizer: Any) -> float:
    """Create the optimizer state from zero gradients at learning rate 0, which change no weight."""
    import torch

    for weight in module.parameters():
        if weight.requires_grad:
            weight.grad = torch.zeros_like(weight)
    rates = [group["lr"] for group in optimizer.param_groups]
    try:
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        optimizer.step()
        began = device_seconds()
        optimizer.step()
        return device_seconds() - began
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        drop_gradients(module)


def _reset_peak() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # what planning left is no part of the run
        torch.cuda.reset_peak_memory_stats()
    else:
        reset_peak()


def _peak_bytes() -> int:
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_reserved())
    return peak_bytes()
