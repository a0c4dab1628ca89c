"""One training step, down to backward.

The loop, the measured step, the learning-rate test and the probe that overfits a batch all call
`forward_backward`; the loop adds up the micro-batches of a step with `add_gradients`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import PER_ROW
from surefit.batches.order import Share
from surefit.data.python.live_rows import kept_randomness
from surefit.models.call import compute_losses
from surefit.pipeline.live_batch import DIVISOR
from surefit.pipeline.own_step import OwnStep
from surefit.speed.numerics import preserved_state
from surefit.targets.own_loss import SumCount
from surefit.targets.task_spec import Batch, Loss

if TYPE_CHECKING:
    from torch import nn

    from surefit.pipeline.pipeline import Job

Rows = npt.NDArray[np.integer[Any]]
Backward = Callable[[Any], Any]


@dataclass(frozen=True)
class Losses:
    """The losses of a micro-batch, without their graph."""

    total: Any
    """Summed over targets."""
    count: Any
    added: Any = None
    """The module's auxiliary loss, a mean over tokens; None where it has none."""
    parts: Mapping[str, SumCount] = field(default_factory=dict)
    """Sums and counts of the parts that a `loss_fn` names."""

    @property
    def mean(self) -> float:
        """Return the loss per target."""
        return float(self.total) / (float(self.count) or 1.0)


def forward_backward(
    call: Callable[[Any, Batch], Any],
    loss: Loss,
    model: Any,
    batch: Batch,
    factor: float | None = None,
    added_factor: float = 1.0,
    backward: Backward | None = None,
) -> Losses:
    """Run one micro-batch forward and backward; its gradients are added to those of the weights.

    The summed loss is multiplied by `factor`, by default one over its own count, and the module's
    auxiliary loss by `added_factor`.
    """
    if isinstance(loss, OwnStep):  # it has a backward pass for each of its losses
        terms = loss.dry_run(model, batch)
        return Losses(terms.total, terms.count, None, terms.parts)
    total, count, added, parts = compute_losses(call, loss, model, batch)
    scaled = total / (float(count) or 1.0) if factor is None else total * factor
    if added is not None:
        scaled = scaled + added * added_factor
    scaled.backward() if backward is None else backward(scaled)
    named = {name: (_detached(part), _detached(of)) for name, (part, of) in parts.items()}
    return Losses(total.detach(), _detached(count), _detached(added), named)


def _detached(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value


@dataclass(frozen=True)
class Place:
    """One optimizer step in the order of the data."""

    step: int  # from 1, over all epochs
    epoch: int  # from 0
    index: int  # of the step in its epoch
    ends_epoch: bool


@dataclass(frozen=True)
class StepBatches:
    """One step of this process: its place, its micro-batches, and their batches to come."""

    place: Place
    share: Share
    loaded: Iterator[Mapping[str, Any]]


@dataclass(frozen=True)
class Processes:
    """The model as this process runs it, and how the processes add up what they computed."""

    model: Any
    num_processes: int = 1
    sum: Callable[..., list[float]] = lambda *numbers: [*numbers]
    """Adds up each number over all processes; all of them call it."""
    accumulating: Callable[[bool], AbstractContextManager[Any]] = lambda is_last: nullcontext()
    """Delays the sum of gradients until the last micro-batch, where the model can."""
    shards: bool = False
    """Whether each pass gathers the model, which all processes do together."""
    drop_unused: Callable[[], None] = lambda: None
    """Drops gradients that no process has computed."""
    backward: Backward | None = None
    """Scales the loss before its backward pass, as fp16 needs it."""


@dataclass(frozen=True)
class Sums:
    """This process's part of a step's mean loss, of its auxiliary loss, and the step's tokens."""

    loss: Any
    added: Any
    num_tokens: int
    parts: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Its part of the sum and of the count of each part that a `loss_fn` names."""


def add_gradients(
    processes: Processes,
    job: Job,
    step: StepBatches,
    on_rows: Callable[[Rows], None] = lambda rows: None,
) -> Sums:
    """Add up the gradients of a step; `on_rows` hears of each micro-batch before the model.

    They are those of the summed loss, divided by the step's targets; by the count of a user's
    loss, where it is another, once all of it is known.
    """
    pipeline, batches, share, place = job.pipeline, job.batches, step.share, step.place
    rows = batches.step_rows(place.epoch, place.index)
    step, divisor = _divide(processes, job, step, rows)
    # DDP averages over processes; the factor turns its mean back into a sum.
    factor = share.weight * processes.num_processes / divisor
    num_tokens = int(batches.lengths[rows].sum(dtype=np.int64))
    total: Any = None
    added: Any = None
    counted: Any = 0
    parts: dict[str, tuple[float, float]] = {}
    pipeline.call.clock.epoch, pipeline.call.clock.step = place.epoch, place.step
    own = passes = len(share.micro_batches)
    if processes.shards:
        passes = batches.most_micro_batches(place.epoch, place.index)
    how = pipeline.call, pipeline.loss, processes.model
    for number, micro_batch in enumerate(share.micro_batches):
        batch = {**next(step.loaded), PER_ROW: divisor / len(rows)}
        on_rows(micro_batch)
        part = int(batches.lengths[micro_batch].sum(dtype=np.int64)) / num_tokens * share.weight
        with processes.accumulating(number == passes - 1):
            scales = factor, part * processes.num_processes
            found = forward_backward(*how, batch, *scales, processes.backward)
        total = found.total if total is None else total + found.total
        counted = counted + found.count
        for name, (part_sum, part_count) in found.parts.items():
            before = parts.get(name, (0.0, 0.0))
            weighed = float(part_sum) * share.weight, float(part_count) * share.weight
            parts[name] = before[0] + weighed[0], before[1] + weighed[1]
        if found.added is not None:
            added = found.added * part if added is None else added + found.added * part
    for number in range(own, passes):  # a pass that counts nothing
        with processes.accumulating(number == passes - 1), preserved_state(pipeline.module):
            processes.model.train()
            forward_backward(*how, batch, 0.0, 0.0, processes.backward)
    processes.drop_unused()
    if pipeline.counts_in_loss and added is None:
        divisor = _divide_by_count(processes, divisor, float(counted) * share.weight)
    mean = float(total) * (share.weight / divisor)
    return Sums(mean, None if added is None else float(added), num_tokens, parts)


def _divide(
    processes: Processes, job: Job, step: StepBatches, rows: Rows
) -> tuple[StepBatches, float]:
    """Return what the loss of a step is divided by; where only its batches know it, read them.

    The targets in the whole step, over all micro-batches and processes.
    """
    if not job.pipeline.counts_when_read:
        return step, job.pipeline.divisor(job.train, rows)
    loaded = [next(step.loaded) for _ in step.share.micro_batches]
    divisor = float(sum(batch[DIVISOR] for batch in loaded)) * step.share.weight
    return replace(step, loaded=iter(loaded)), processes.sum(divisor)[0]


def _divide_by_count(processes: Processes, divisor: float, own_count: float) -> float:
    """Divide the gradients of a step by its count instead of `divisor`; return the count.

    A step that counts nothing has no gradients to divide.
    """
    count = processes.sum(own_count)[0]
    if count in (0.0, divisor):
        return divisor
    for parameter in processes.model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(divisor / count)
    return count


def drop_gradients(module: nn.Module) -> None:
    """Free the gradients of all weights."""
    for weight in module.parameters():
        weight.grad = None


@contextmanager
def restoring_state(module: nn.Module, optimizer: Any, fresh: bool) -> Iterator[None]:
    """Train in the block; afterwards buffers, random states, mode and optimizer are as before.

    A `fresh` optimizer had no state, and loses what it got.
    """
    with preserved_state(module), kept_randomness():
        module.train()
        try:
            yield
        finally:
            drop_gradients(module)
            if fresh:
                optimizer.state.clear()


@contextmanager
def trying_steps(module: nn.Module, optimizer: Any) -> Iterator[list[nn.Parameter]]:
    """Give the trained weights to steps of a trial; afterwards everything is as before."""
    import torch

    trained = [weight for weight in module.parameters() if weight.requires_grad]
    kept = [weight.detach().clone() for weight in trained]
    rates = [group["lr"] for group in optimizer.param_groups]
    try:
        with restoring_state(module, optimizer, fresh=True):
            yield trained
    finally:
        with torch.no_grad():
            for weight, value in zip(trained, kept, strict=True):
                weight.copy_(value)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
