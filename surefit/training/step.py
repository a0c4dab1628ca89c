"""One optimizer step: its batches, forward and backward, and what of it is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import tee
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.batches.loading import from_workers, prefetch
from surefit.batches.order import Batches, Share
from surefit.errors import RunFailedError
from surefit.models.call import compute_losses
from surefit.pipeline.live_batch import DIVISOR
from surefit.pipeline.pipeline import Job
from surefit.run.choose_checkpoint import State
from surefit.speed.numerics import preserved_state
from surefit.training.engine import Engine
from surefit.training.schedule import Place, places

Rows = npt.NDArray[np.integer[Any]]
Feed = Callable[[Iterator[tuple[int, Rows]]], Iterator[Mapping[str, Any]]]
"""Batches for pairs of epoch and rows, in their order, made ahead of time."""


@dataclass(frozen=True)
class StepBatches:
    """One step of this process: its place, its micro-batches, and their batches to come."""

    place: Place
    share: Share
    loaded: Iterator[Mapping[str, Any]]


@dataclass(frozen=True)
class Sums:
    """This process's part of a step's mean loss, of its auxiliary loss, and the step's tokens."""

    loss: Any
    added: Any
    num_tokens: int


def split_share(share: Share, splits: int) -> Share:
    """The share with each micro-batch in so many parts; a part has at least one row."""
    if splits == 1:
        return share
    parts = (np.array_split(rows, min(splits, len(rows))) for rows in share.micro_batches)
    return Share(tuple(part for each in parts for part in each), share.weight)


def load_steps(
    engine: Engine, batches: Batches, feed: Feed, num_steps: int, state: State
) -> Iterator[StepBatches]:
    """The steps to come after a state, with this process's batches made ahead of their turn."""
    process, splits = engine.accelerator.process_index, state.splits
    steps, ahead = tee(
        (place, split_share(batches.share(place.epoch, place.index, process), splits))
        for place in places(batches, state.step, num_steps)
    )
    loaded = feed((place.epoch, rows) for place, share in ahead for rows in share.micro_batches)
    for place, share in steps:
        yield StepBatches(place, share, loaded)


def make_feed(
    job: Job,
    engine: Engine,
    workers: int = 0,
    on_signal: Callable[[], None] = lambda: None,
    notice: Callable[[str], None] = lambda text: None,
) -> Feed:
    """How batches are made ahead of their turn: by a thread, or by worker processes on the CPU."""
    import torch

    device = engine.accelerator.device
    if device.type == "cuda" and device.index is None:  # the thread has a current device of its own
        device = torch.device(device.type, torch.accelerator.current_device_index())

    def load(wanted: tuple[int, Any]) -> Mapping[str, Any]:
        epoch, rows = wanted
        return job.batch(rows, epoch, "cpu" if workers else device)

    if workers:
        return lambda wanted: from_workers(wanted, load, workers, device, on_signal, notice)
    if job.pipeline.live is not None:  # a thread would share the random state of the step
        return lambda wanted: map(load, wanted)
    return lambda wanted: prefetch(wanted, load)


def _divide(engine: Engine, job: Job, step: StepBatches, rows: Rows) -> tuple[StepBatches, float]:
    """What the loss of a step is divided by; where that is known from its batches, they are read.

    The targets in the whole step, over all micro-batches and processes.
    """
    if not job.pipeline.counts_when_read:
        return step, job.pipeline.divisor(job.train, rows)
    loaded = [next(step.loaded) for _ in step.share.micro_batches]
    divisor = float(sum(batch[DIVISOR] for batch in loaded)) * step.share.weight
    return replace(step, loaded=iter(loaded)), sum_over_processes(engine, divisor)[0]


def sum_over_processes(engine: Engine, *numbers: float) -> list[float]:
    """Return the sum of each number over all processes; all of them call it."""
    import torch

    accelerator = engine.accelerator
    if accelerator.num_processes == 1:
        return list(numbers)
    wide = torch.float32 if accelerator.device.type == "mps" else torch.float64
    own = torch.tensor(numbers, dtype=wide, device=accelerator.device)
    summed: list[float] = accelerator.reduce(own, reduction="sum").tolist()
    return summed


def _divide_by_count(engine: Engine, divisor: float, own_count: float) -> float:
    """Divide the gradients of a step by its count instead of `divisor`; returns the count.

    A step that counts nothing has no gradients to divide.
    """
    count = sum_over_processes(engine, own_count)[0]
    if count in (0.0, divisor):
        return divisor
    for parameter in engine.model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(divisor / count)
    return count


def add_gradients(
    engine: Engine,
    job: Job,
    step: StepBatches,
    backward: Callable[[Any], Any],
    on_rows: Callable[[Rows], None],
) -> Sums:
    """Add up the gradients of a step; `on_rows` hears of each micro-batch before the model.

    They are those of the summed loss, divided by the step's targets; by the count of a user's
    loss, where it is another, once all of it is known.
    """
    accelerator, model, pipeline = engine.accelerator, engine.model, job.pipeline
    batches, share = job.batches, step.share
    rows = batches.step_rows(step.place.epoch, step.place.index)
    step, divisor = _divide(engine, job, step, rows)
    # DDP averages over processes; the factor turns its mean back into a sum.
    factor = share.weight * accelerator.num_processes / divisor
    num_tokens = int(batches.lengths[rows].sum(dtype=np.int64))
    total: Any = None
    added: Any = None
    counted: Any = 0
    if pipeline.call.clock is not None:
        pipeline.call.clock.epoch, pipeline.call.clock.step = step.place.epoch, step.place.step
    own = len(share.micro_batches)
    passes = own
    if engine.is_sharded:  # each pass gathers the model, which all processes do together
        passes = batches.most_micro_batches(step.place.epoch, step.place.index)
    for number, micro_batch in enumerate(share.micro_batches):
        batch = next(step.loaded)
        on_rows(micro_batch)
        with engine.accumulating(number == passes - 1):
            loss_sum, count, extra = compute_losses(pipeline.call, pipeline.loss, model, batch)
            scaled = loss_sum * factor
            if extra is not None:  # a mean over tokens, not a sum over targets
                part = int(batches.lengths[micro_batch].sum(dtype=np.int64)) / num_tokens
                extra = extra * (part * share.weight)
                scaled = scaled + extra * accelerator.num_processes
                added = extra.detach() if added is None else added + extra.detach()
            backward(scaled)
        total = loss_sum.detach() if total is None else total + loss_sum.detach()
        counted = counted + (count.detach() if hasattr(count, "detach") else count)
    for number in range(own, passes):  # a pass that counts nothing
        with engine.accumulating(number == passes - 1), preserved_state(pipeline.module):
            model.train()
            loss_sum, _, extra = compute_losses(pipeline.call, pipeline.loss, model, batch)
            backward((loss_sum if extra is None else loss_sum + extra) * 0.0)
    if engine.sharded is not None and engine.sharded.used is not None:
        engine.sharded.used.drop_others()
    if pipeline.counts_in_loss and added is None:
        divisor = _divide_by_count(engine, divisor, float(counted) * share.weight)
    mean = float(total) * (share.weight / divisor)
    return Sums(mean, None if added is None else float(added), num_tokens)


MAX_SKIPPED_IN_A_ROW = 10
LEAST_SCALE = 2.0**-10
"""Of the loss in fp16, which starts at 2¹⁶: gradients that overflow even so are not finite."""
SHOWN_ROWS = 12


class NonFiniteError(RunFailedError):
    """A step whose loss or gradient is NaN or infinite; the weights are those before the step."""

    is_told = True  # all processes raise it, and process 0 prints it


def find_nonfinite(loss: float, norm: Any) -> str:
    """What of a step is not finite; empty where all is."""
    if not math.isfinite(loss):
        return f"The loss became {loss}"
    value = 0.0 if norm is None else float(norm)
    if not math.isfinite(value):
        return f"The gradient norm became {value} (with a loss of {loss:.6g})"
    return ""


def stop_at(fault: str, step: int, saved: bool) -> NonFiniteError:
    """The error that ends the run, with the policy and the command that finds the row."""
    kept = f" Step {step - 1} is saved." if saved else ""
    return NonFiniteError(
        f"{fault} at step {step}. The weights were not changed.{kept}",
        "Find the row that caused it with `surefit explain RUN`. If the rows are sound: lower "
        "--lr, keep clip above 0, or use precision=fp32. To train on without such steps, start "
        "again with --set on_nonfinite=skip.",
    )


def too_many_skipped(fault: str, step: int) -> NonFiniteError:
    """The error where skipping does not help."""
    return NonFiniteError(
        f"{fault} at step {step}, as in the {MAX_SKIPPED_IN_A_ROW - 1} steps before it, which were "
        "skipped (on_nonfinite: skip).",
        "Find the cause with `surefit explain RUN`; lower --lr, or use precision=fp32.",
    )


def show_rows(rows: list[int]) -> str:
    """Row numbers for a message.

    >>> show_rows([3, 17])
    '3, 17'
    """
    more = f" and {len(rows) - SHOWN_ROWS} more" if len(rows) > SHOWN_ROWS else ""
    return ", ".join(map(str, rows[:SHOWN_ROWS])) + more
