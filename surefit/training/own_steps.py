"""Steps of the user's own `training_step`: an optimizer step after each loss that it yields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.models.named_modules import NamedModules, NamedOptimizers, Part
from surefit.pipeline.own_step import OwnStep, backward_into
from surefit.pipeline.pipeline import Job
from surefit.pipeline.step import StepBatches, Sums
from surefit.speed.clipping import make_clipper
from surefit.training.engine import Engine

if TYPE_CHECKING:
    import torch

Factors = Mapping[str, Callable[[int], float]]
Fault = Callable[[float, Any], str]


class PartlySteppedError(Exception):
    """A loss was not finite after another optimizer had stepped; the weights are of no step."""


class NotFiniteError(Exception):
    """A loss or gradient was not finite before any optimizer had stepped."""


def factors_by_part(job: Job, spans: Sequence[tuple[int, int]]) -> Factors:
    """Return the learning rate factor of each step, by optimizer; empty for usual steps."""
    own = job.pipeline.loss
    parts = own.parts_of if isinstance(own, OwnStep) else {}
    return {name: each.schedule.by_step(spans) for name, each in parts.items()}


def take_own_step(
    engine: Engine, job: Job, step: StepBatches, factors: Factors, find_fault: Fault
) -> Sums:
    """Take one step: for each yielded loss, backward into its optimizer's weights, clip, step.

    Raise where a loss or gradient is not finite; nothing has been applied of that loss.
    """
    own, optimizers, call = job.pipeline.loss, engine.plain_optimizer, job.pipeline.call
    assert isinstance(own, OwnStep)
    modules = job.pipeline.module
    assert isinstance(optimizers, NamedOptimizers)
    assert isinstance(modules, NamedModules)
    call.clock.epoch, call.clock.step = step.place.epoch, step.place.step
    [rows] = step.share.micro_batches
    batch = next(step.loaded)

    def update(name: str, loss: torch.Tensor) -> None:
        part, optimizer = own.parts_of[name], optimizers.part(name)
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        weights = [weight for weight in weights if weight.requires_grad]
        backward_into(loss, weights)
        norm = make_clipper(engine.accelerator, optimizer, weights, part.clip)()
        fault = find_fault(float(loss.detach()), norm)
        if fault:
            started = engine.buffers.is_updating
            engine.buffers.is_updating = False
            raise (PartlySteppedError if started else NotFiniteError)(f"{name}: {fault}")
        engine.buffers.is_updating = True
        _step(part, optimizer, factors[name](step.place.step))

    terms = own.run(modules, batch, update)
    engine.buffers.is_updating = False
    num_tokens = int(job.batches.lengths[rows].sum(dtype=np.int64))
    parts = {name: (float(total), float(count)) for name, (total, count) in terms.parts.items()}
    return Sums(float(terms.total) / terms.count, None, num_tokens, parts)


def _step(part: Part, optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Step one optimizer at its rate, and drop its gradients."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    optimizer.zero_grad()
