"""The training loop. It knows neither task nor modality."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from itertools import tee
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.batches.order import Batches, Share
from surefit.errors import InterruptedRunError, RunFailedError
from surefit.kernels.clipping import make_clipper
from surefit.models.call import compute_losses
from surefit.pipeline.evaluation import Evaluation
from surefit.pipeline.job import Job
from surefit.run.checkpoints import State
from surefit.run.events import Observer
from surefit.tasks.task_spec import is_better
from surefit.training.engine import Engine
from surefit.training.schedule import Place, places

if TYPE_CHECKING:
    from accelerate import Accelerator

Rows = npt.NDArray[np.integer[Any]]
Feed = Callable[[Iterator[tuple[int, Rows]]], Iterator[Mapping[str, Any]]]
"""Batches for pairs of epoch and rows, in their order, made ahead of time."""


@dataclass(frozen=True)
class Pace:
    """When to evaluate, save and stop, and how far a step goes."""

    num_steps: int
    eval_every: int | None = None
    save_every: int | None = None
    best_metric: str = "loss"
    patience: int | None = None
    clip: float = 0.0
    """Largest gradient norm; 0 for no clipping."""
    lr_factor: Callable[[int], float] = lambda step: 1.0
    """What the learning rate is multiplied by at each step."""

    def evaluates(self, place: Place) -> bool:
        """Whether an evaluation is due after this step."""
        if place.step == self.num_steps:
            return True
        return place.ends_epoch if self.eval_every is None else place.step % self.eval_every == 0

    def saves(self, place: Place) -> bool:
        """Whether a checkpoint is due after this step."""
        every = self.save_every is not None and place.step % self.save_every == 0
        return every or self.evaluates(place)


@dataclass(frozen=True)
class Hooks:
    """What the loop calls besides the model: each is given, and none knows the loop."""

    evaluate: Callable[[], Evaluation] | None
    save: Callable[[State], None]
    emit: Observer
    stop_asked: Callable[[], bool]


def train(engine: Engine, job: Job, feed: Feed, pace: Pace, hooks: Hooks, state: State) -> State:
    """Train from `state` to the end of the pace, and return the last state.

    for each step:
        divisor = targets in all micro-batches of the step, over all processes
        for each micro-batch of this process:
            outputs = model(batch)
            (sum of losses / divisor).backward()  # plus auxiliary loss × share of the tokens
        clip, step the optimizer at the step's learning rate
        emit the step; evaluate and save where due

    The random state is set from (seed, step, process) before each step, so that dropout needs
    no state to be resumed. One value is read back from the device per step.
    """
    import torch

    accelerator, model, optimizer = engine.accelerator, engine.model, engine.optimizer
    pipeline, batches, num_targets = job.pipeline, job.batches, job.train.num_targets
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    base_lrs = [group["lr"] for group in optimizer.param_groups]
    backward = accelerator.backward if accelerator.scaler is not None else torch.Tensor.backward
    clip_gradients = make_clipper(accelerator, optimizer, parameters, pace.clip)
    _finish_step(_last_place(batches, state, pace), pace, hooks, state)
    if state.stopped_early:
        return state
    steps, ahead = tee(list_steps(batches, state.step, pace.num_steps, accelerator.process_index))
    loads = ((place.epoch, rows) for place, share in ahead for rows in share.micro_batches)
    loaded = feed(loads)
    model.train()
    for place, share in steps:
        began = time.perf_counter()
        rows = batches.step_rows(place.epoch, place.index)
        divisor = int(num_targets[rows].sum())
        seed_step(pipeline.seed, place.step, accelerator.process_index)
        # DDP averages over processes; the factor turns its mean back into a sum.
        factor = share.weight * accelerator.num_processes / divisor
        num_tokens = int(batches.lengths[rows].sum(dtype=np.int64))
        total: Any = None
        added: Any = None
        for number, micro_batch in enumerate(share.micro_batches):
            batch = next(loaded)
            is_last = number == len(share.micro_batches) - 1
            with nullcontext() if is_last else accelerator.no_sync(model):
                loss_sum, _, extra = compute_losses(pipeline.call, pipeline.loss, model, batch)
                scaled = loss_sum * factor
                if extra is not None:  # a mean over tokens, not a sum over targets
                    part = int(batches.lengths[micro_batch].sum(dtype=np.int64)) / num_tokens
                    extra = extra * (part * share.weight)
                    scaled = scaled + extra * accelerator.num_processes
                    added = extra.detach() if added is None else added + extra.detach()
                backward(scaled)
            total = loss_sum.detach() if total is None else total + loss_sum.detach()
        own = float(total) * (share.weight / divisor), 0.0 if added is None else float(added)
        mean_loss, mean_added, stop = _across(accelerator, *own, hooks.stop_asked())
        if not math.isfinite(mean_loss + mean_added):
            raise RunFailedError(
                f"The loss became {mean_loss + mean_added} at step {place.step}.",
                "Lower --lr, keep clip above 0, or use precision=fp32.",
            )
        clip_gradients()
        rate = pace.lr_factor(place.step)
        for group, base in zip(optimizer.param_groups, base_lrs, strict=True):
            group["lr"] = base * rate
        optimizer.step()
        for parameter in parameters:
            parameter.grad = None
        state.step = place.step
        state.tokens += num_tokens
        hooks.emit(
            {
                "event": "step",
                "step": state.step,
                "epoch": place.epoch + 1,
                "loss": mean_loss,
                **({} if added is None else {"aux_loss": mean_added}),
                "lr": base_lrs[0] * rate,
                "tokens": state.tokens,
                "seconds": time.perf_counter() - began,
            }
        )
        if stop:
            hooks.save(state)
            raise InterruptedRunError(f"Stopped after step {state.step}, which is saved.")
        _finish_step(place, pace, hooks, state)
        if state.stopped_early:
            break
    return state


def list_steps(
    batches: Batches, after: int, num_steps: int, process: int
) -> Iterator[tuple[Place, Share]]:
    """Each step to come, with the share of one process in it."""
    for place in places(batches, after, num_steps):
        yield place, batches.share(place.epoch, place.index, process)


def seed_step(seed: int, step: int, process: int) -> None:
    """Set torch's random state for one step of one process."""
    import torch

    words = f"{seed} {step} {process}".encode()
    mixed = int.from_bytes(blake2b(words, digest_size=8).digest(), "little")
    if torch.accelerator.is_available():
        torch.manual_seed(mixed)
    else:  # the same numbers; the other way notes a stack for a device that is not there
        torch.default_generator.manual_seed(mixed)


def _across(
    accelerator: Accelerator, loss: float, added: float, stop: bool
) -> tuple[float, float, bool]:
    """The step's mean loss, its auxiliary loss, and whether any process was asked to stop."""
    import torch

    if accelerator.num_processes == 1:
        return loss, added, stop
    own = torch.tensor([loss, added, float(stop)], dtype=torch.float64)
    summed = accelerator.reduce(own.to(accelerator.device), reduction="sum").tolist()
    return summed[0], summed[1], summed[2] > 0


def _last_place(batches: Batches, state: State, pace: Pace) -> Place | None:
    """The place of the step a resumed run had finished, if it had finished any."""
    if state.step == 0:
        return None
    return next(places(batches, state.step - 1, pace.num_steps))


def _finish_step(place: Place | None, pace: Pace, hooks: Hooks, state: State) -> None:
    """Evaluate and save where it is due and not yet done."""
    if place is None or state.evaluated_step == place.step:
        return
    if hooks.evaluate is not None and pace.evaluates(place):
        note_evaluation(hooks.evaluate(), place.step, place.epoch + 1, pace, state, hooks.emit)
    if pace.saves(place):
        hooks.save(state)


def note_evaluation(
    result: Evaluation, step: int, epoch: int, pace: Pace, state: State, emit: Observer
) -> None:
    """Emit an evaluation, and note whether it is the best so far."""
    event = {"event": "eval", "step": step, "epoch": epoch, "metrics": result.metrics}
    emit({**event, "samples": result.samples} if result.samples else event)
    state.evaluated_step = step
    metric = pace.best_metric if pace.best_metric in result.metrics else "loss"
    value, loss = float(result.metrics[metric]), float(result.metrics["loss"])
    better = is_better(metric, value, state.best)
    tied = value == state.best and is_better("loss", loss, state.best_loss)
    if math.isfinite(value) and (better or tied):
        state.best, state.best_loss, state.best_step = value, loss, step
        state.stale_evaluations = 0
    else:
        state.stale_evaluations += 1
        state.stopped_early = pace.patience is not None and state.stale_evaluations >= pace.patience
