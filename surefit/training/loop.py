"""The training loop. It knows neither task nor modality."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.order import Batches
from surefit.errors import InterruptedRunError, RunFailedError, message_of
from surefit.pipeline.evaluation import Evaluation
from surefit.pipeline.live_batch import StreamEndedError, StreamWindows
from surefit.pipeline.own_step import OwnStep
from surefit.pipeline.pipeline import Job
from surefit.pipeline.step import Place, Rows, StepBatches, Sums, add_gradients
from surefit.progress import Progress
from surefit.run.choose_checkpoint import State
from surefit.run.events import Observer
from surefit.speed.clipping import make_clipper
from surefit.targets.task_spec import Better, is_better
from surefit.training.engine import Engine, LastBuffers
from surefit.training.own_steps import (
    Factors,
    NotFiniteError,
    PartlySteppedError,
    take_own_step,
)
from surefit.training.schedule import Feed, load_steps, places

if TYPE_CHECKING:
    import torch
    from torch import nn


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
    skips_nonfinite: bool = False
    """Whether a step with a loss or gradient that is not finite is skipped; else the run stops."""
    lr_by_part: Factors = field(default_factory=dict)
    """The same for each optimizer of a `training_step`."""
    keeps_last: bool = False
    """Whether the last evaluation is the best one, where no figure says which weights are."""
    better: Better | None = None
    """Whether higher or lower figures of the best metric are better; None: as its name says."""

    def evaluates(self, place: Place) -> bool:
        """Return whether an evaluation is due after this step."""
        if place.step == self.num_steps:
            return True
        return place.ends_epoch if self.eval_every is None else place.step % self.eval_every == 0

    def saves(self, place: Place) -> bool:
        """Return whether a checkpoint is due after this step."""
        every = self.save_every is not None and place.step % self.save_every == 0
        return every or self.evaluates(place)


@dataclass(frozen=True)
class Hooks:
    """What the loop calls besides the model: each is given, and none knows the loop."""

    evaluate: Callable[[], Evaluation] | None
    save: Callable[[State], None]
    emit: Observer
    stop_asked: Callable[[], bool]
    on_rows: Callable[[Rows], None] = lambda rows: None
    """Hears which rows of the Store are in work."""
    notice: Callable[[str], None] = lambda text: None
    """Reports what happened to the run."""


def train(engine: Engine, job: Job, feed: Feed, pace: Pace, hooks: Hooks, state: State) -> State:
    """Train from `state` to the end of the pace, and return the last state.

    for each step:
        divisor = targets in all micro-batches of the step, over all processes
        for each micro-batch of this process:
            outputs = model(batch)
            (sum of losses / divisor).backward()  # plus auxiliary loss × share of the tokens
        clip; where loss and gradient are finite, step the optimizer at the step's learning rate
        emit the step; evaluate and save where due

    The random state is set from (seed, step, process) before each step, so that dropout needs
    no state to be resumed. A step that does not fit in the device's memory is done again with its
    micro-batches split; nothing has changed by then but gradients and buffers.

    A `training_step` of the user's own has a backward pass and an optimizer step for each loss that
    it yields (`training/own_steps.py`), in place of those above.
    """
    accelerator, model, optimizer = engine.accelerator, engine.model, engine.optimizer
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    base_lrs = [group["lr"] for group in optimizer.param_groups]
    processes, buffers = engine.processes, engine.buffers
    clip_gradients = make_clipper(accelerator, optimizer, parameters, pace.clip)
    own = isinstance(job.pipeline.loss, OwnStep)
    if state.step:  # resumed: the optimizer as the last step left it
        _set_rates(optimizer, base_lrs, pace.lr_factor(state.step))
        _evaluate_if_due(_last_place(job.batches, state, pace), pace, hooks, state)
    if state.stopped_early:
        return state
    model.train()
    steps = load_steps(engine, job.batches, feed, pace.num_steps, state)
    while (step := next(steps, None)) is not None:
        began, place = time.perf_counter(), step.place
        seed_step(job.pipeline.seed, place.step, accelerator.process_index)
        compute = _own_step if own else _add_gradients
        sums, exceeded = compute(engine, job, step, pace, hooks, state)
        if sums is None:  # outside of the handler, which holds the tensors of the step
            hooks.notice(_split(step, state, exceeded))
            _undo_step(parameters, buffers)
            steps = load_steps(engine, job.batches, feed, pace.num_steps, state)
            continue
        norm = None if own else clip_gradients()
        mean_loss, mean_added, num_stopped, *of_parts = processes.sum(
            sums.loss,
            sums.added or 0.0,
            float(hooks.stop_asked()),
            *(number for part in sums.parts.values() for number in part),
        )
        rate = pace.lr_factor(place.step)
        fault, overflowed = find_nonfinite(mean_loss + mean_added, norm), False
        if fault:
            hooks.on_rows(np.concatenate(step.share.micro_batches))
            _undo_step(parameters, buffers)
            _skip_or_stop(fault, place.step, pace, hooks, state, accelerator.scaler)
        elif not own:
            _set_rates(optimizer, base_lrs, rate)
            overflowed = _step_optimizer(engine, place.step, hooks, state)
        for parameter in parameters:
            parameter.grad = None
        buffers.keep()
        state.step = place.step
        state.tokens += sums.num_tokens
        hooks.emit(
            {
                "event": "step",
                "step": state.step,
                "epoch": place.epoch + 1,
                "loss": mean_loss,
                **({} if sums.added is None else {"aux_loss": mean_added}),
                **_means(sums.parts, of_parts),
                "lr": base_lrs[0] * rate,
                "tokens": state.tokens,
                "seconds": time.perf_counter() - began,
                **({} if norm is None else {"grad_norm": float(norm)}),
                **({"skipped": True} if fault or overflowed else {}),
            }
        )
        if num_stopped:
            hooks.save(state)
            raise InterruptedRunError(f"Stopped after step {state.step}, which is saved.")
        if not _evaluate_if_due(place, pace, hooks, state) and pace.saves(place):
            hooks.save(state)
        if state.stopped_early:
            break
    return state


def train_rows(
    engine: Engine,
    job: Job,
    feed: Feed,
    pace: Pace,
    hooks: Hooks,
    state: State,
    progress: Progress,
) -> None:
    """Train from `state` on; a stream is moved to where it was, and its end is the run's."""
    live = job.pipeline.live
    if isinstance(live, StreamWindows):
        live.notices[:] = [hooks.notice]
        if state.stream is not None:
            live.seek(job.pipeline, state.stream, progress)
    try:
        train(engine, job, feed, pace, hooks, state)
    except StreamEndedError as error:
        if not state.step:
            raise
        hooks.notice(" ".join(error.lines))
        if hooks.evaluate is not None and state.evaluated_step != state.step:
            epoch = _last_place(job.batches, state, pace).epoch + 1
            note_evaluation(hooks.evaluate(), state.step, epoch, pace, state, hooks.emit)
        hooks.save(state)


def _add_gradients(
    engine: Engine, job: Job, step: StepBatches, pace: Pace, hooks: Hooks, state: State
) -> tuple[Sums | None, str]:
    """Add up the gradients of a step; None and the message where it does not fit in memory."""
    import torch

    try:
        return add_gradients(engine.processes, job, step, hooks.on_rows), ""
    except torch.OutOfMemoryError as error:
        return None, _refuse_split(error, step, state, engine.accelerator.num_processes)


def _own_step(
    engine: Engine, job: Job, step: StepBatches, pace: Pace, hooks: Hooks, state: State
) -> tuple[Sums | None, str]:
    """Take a step of the user's own; its loss is NaN where one of its losses was not finite."""
    [rows] = step.share.micro_batches
    hooks.on_rows(rows)
    try:
        return take_own_step(engine, job, step, pace.lr_by_part, find_nonfinite), ""
    except NotFiniteError as error:
        hooks.notice(f"Step {step.place.step}, optimizer {error}.")
    except PartlySteppedError as error:
        if not pace.skips_nonfinite:
            raise NonFiniteError(
                f"Step {step.place.step}, optimizer {error}. Another optimizer had stepped before "
                "it, so this step is not saved.",
                "Resume from the last checkpoint with a lower lr, or start again with "
                "--set on_nonfinite=skip.",
            ) from error
        hooks.notice(f"Step {step.place.step}, optimizer {error}.")
    return Sums(math.nan, None, int(job.batches.lengths[rows].sum(dtype=np.int64))), ""


def _means(names: Iterable[str], sums: Sequence[float]) -> dict[str, float]:
    """Return the mean of each part of a loss, from the sums and counts of all processes.

    >>> _means(["kl"], [6.0, 4.0])
    {'loss_kl': 1.5}
    """
    pairs = zip(sums[::2], sums[1::2], strict=True)
    means = (total / count if count else math.nan for total, count in pairs)
    return {f"loss_{name}": mean for name, mean in zip(names, means, strict=True)}


def _refuse_split(
    error: torch.OutOfMemoryError, step: StepBatches, state: State, num_processes: int
) -> str:
    """Return the message of the error; raises it where smaller micro-batches cannot help.

    Several processes meet in the backward pass: one of them alone cannot do its step again.
    """
    largest = max(map(len, step.share.micro_batches))
    if state.splits > 1 or largest == 1 or num_processes > 1:
        raise error
    return message_of(error).split("\n", 1)[0]


def _split(step: StepBatches, state: State, exceeded: str) -> str:
    """Split micro-batches from here on; what to report about it."""
    state.splits = 2
    largest = max(map(len, step.share.micro_batches))
    return (
        f"Step {step.place.step} did not fit in the device's memory ({exceeded}). Micro-batches "
        f"of {largest} rows are split in two from this step on; the effective batch size stays the "
        f"same. To plan for it: --batch-size {-(-largest // 2)} and twice the --grad-accum."
    )


def _undo_step(parameters: Sequence[nn.Parameter], buffers: LastBuffers) -> None:
    """Undo what forward and backward have changed; return the device memory of the step."""
    import torch

    for parameter in parameters:
        parameter.grad = None
    buffers.restore()
    if torch.accelerator.is_available():
        gc.collect()
        torch.accelerator.empty_cache()


def _skip_or_stop(
    fault: str, step: int, pace: Pace, hooks: Hooks, state: State, scaler: Any
) -> None:
    """Count a step that is not finite as skipped; or save the step before it, and raise."""
    if scaler is not None:  # the next step is to unscale its gradients, at the same scale
        scaler.update(scaler.get_scale())
    if not pace.skips_nonfinite:
        if state.step:
            hooks.save(state)
        raise stop_at(fault, step, saved=state.step > 0)
    state.skipped_in_a_row += 1
    if state.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
        raise too_many_skipped(fault, step)
    state.skipped_steps += 1
    hooks.notice(f"{fault} at step {step}, which was skipped ({state.skipped_steps} so far).")


def _step_optimizer(engine: Engine, step: int, hooks: Hooks, state: State) -> bool:
    """Step; True if the gradients overflowed in fp16, which is usual while the scale is found."""
    scaler = engine.accelerator.scaler
    before = None if scaler is None else scaler.get_scale()
    engine.buffers.is_updating = True
    engine.optimizer.step()
    engine.buffers.is_updating = False
    state.skipped_in_a_row = 0
    # A fused optimizer skips the step without telling Accelerate, so the scale is compared.
    if scaler is None or scaler.get_scale() >= before:
        return False
    if scaler.get_scale() < LEAST_SCALE:
        if state.step:
            hooks.save(state)
        fault = "The gradients were not finite in fp16, however small the scale of the loss,"
        raise stop_at(fault, step, saved=state.step > 0)
    state.skipped_steps += 1
    hooks.notice(
        f"Step {step} overflowed in fp16 and was skipped; the scale of the loss is lowered "
        f"({state.skipped_steps} so far)."
    )
    return True


def seed_step(seed: int, step: int, process: int) -> None:
    """Set torch's random state for one step of one process."""
    import torch

    words = f"{seed} {step} {process}".encode()
    mixed = int.from_bytes(blake2b(words, digest_size=8).digest(), "little")
    if torch.accelerator.is_available():
        torch.manual_seed(mixed)
    else:  # the same numbers; the other way notes a stack for a device that is not there
        torch.default_generator.manual_seed(mixed)


def _set_rates(optimizer: Any, base_lrs: Sequence[float], factor: float) -> None:
    for group, base in zip(optimizer.param_groups, base_lrs, strict=True):
        group["lr"] = base * factor


def _last_place(batches: Batches, state: State, pace: Pace) -> Place:
    """Return the place of the step a resumed run had finished."""
    return next(places(batches, state.step - 1, pace.num_steps))


def _evaluate_if_due(place: Place, pace: Pace, hooks: Hooks, state: State) -> bool:
    """Evaluate where it is due and not yet done, and then save."""
    due = hooks.evaluate is not None and pace.evaluates(place)
    if not due or state.evaluated_step == place.step:
        return False
    assert hooks.evaluate is not None
    note_evaluation(hooks.evaluate(), place.step, place.epoch + 1, pace, state, hooks.emit)
    hooks.save(state)
    return True


def note_evaluation(
    result: Evaluation, step: int, epoch: int, pace: Pace, state: State, emit: Observer
) -> None:
    """Emit an evaluation, and note whether it is the best so far."""
    event = {"event": "eval", "step": step, "epoch": epoch, "metrics": result.metrics}
    emit({**event, "samples": result.samples} if result.samples else event)
    state.evaluated_step = step
    metric = pace.best_metric if pace.best_metric in result.metrics else "loss"
    value, loss = float(result.metrics[metric]), float(result.metrics["loss"])
    direction = pace.better if metric == pace.best_metric else None
    better = is_better(metric, value, state.best, direction)
    tied = value == state.best and is_better("loss", loss, state.best_loss)
    if math.isfinite(value) and (better or tied or pace.keeps_last):
        state.best, state.best_step = value, step
        state.best_loss = loss if math.isfinite(loss) else None
        state.stale_evaluations = 0
    else:
        state.stale_evaluations += 1
        state.stopped_early = pace.patience is not None and state.stale_evaluations >= pace.patience


MAX_SKIPPED_IN_A_ROW = 10
LEAST_SCALE = 2.0**-10
"""Of the loss in fp16, which starts at 2¹⁶: gradients that overflow even so are not finite."""


class NonFiniteError(RunFailedError):
    """A step whose loss or gradient is NaN or infinite; the weights are those before the step."""

    is_printed = True  # all processes raise it, and process 0 prints it


def find_nonfinite(loss: float, norm: Any) -> str:
    """Return what of a step is not finite; empty where all is."""
    if not math.isfinite(loss):
        return f"The loss became {loss}"
    value = 0.0 if norm is None else float(norm)
    if not math.isfinite(value):
        return f"The gradient norm became {value} (with a loss of {loss:.6g})"
    return ""


def stop_at(fault: str, step: int, saved: bool) -> NonFiniteError:
    """Return the error that ends the run, with the policy and the command that finds the row."""
    kept = f" Step {step - 1} is saved." if saved else ""
    return NonFiniteError(
        f"{fault} at step {step}. The weights were not changed.{kept}",
        "Find the row that caused it with `surefit explain RUN`. If the rows are sound: lower "
        "--lr, keep clip above 0, or use precision=fp32. To train on without such steps, start "
        "again with --set on_nonfinite=skip.",
    )


def too_many_skipped(fault: str, step: int) -> NonFiniteError:
    """Return the error where skipping does not help."""
    return NonFiniteError(
        f"{fault} at step {step}, as in the {MAX_SKIPPED_IN_A_ROW - 1} steps before it, which were "
        "skipped (on_nonfinite: skip).",
        "Find the cause with `surefit explain RUN`; lower --lr, or use precision=fp32.",
    )
