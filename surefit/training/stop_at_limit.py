"""Stops a run before it exceeds `max_memory_gb`: the last finished step is saved."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surefit.errors import InterruptedRunError, MemoryLimitError
from surefit.gigabytes import show_gb
from surefit.memory.enforce_limit import MemoryGuard
from surefit.processes import num_processes
from surefit.run.checkpoint_state import State
from surefit.run.run_folder import Run
from surefit.training.failures import Watch
from surefit.training.last_buffers import LastBuffers

if TYPE_CHECKING:
    from torch import nn

FIX = (
    "Resume with a larger limit: surefit train --resume {run} --max-memory-gb N. Or start a new "
    "run with a smaller batch_size and a larger grad_accum, checkpointing=true, LoRA or a shorter "
    "max_seq_length."
)


@dataclass(frozen=True)
class StepInWork:
    """A run, what its steps change, how far it is, and the batch in work."""

    run: Run
    module: nn.Module
    optimizer: Any
    state: State
    watch: Watch


@dataclass
class _LastStep:
    """What a step changes before it is finished, as it was after the last finished one."""

    buffers: LastBuffers
    is_updating: bool = False
    """Whether the optimizer is changing the weights, so that they belong to no step."""


@contextmanager
def stop_at_limit(
    guard: MemoryGuard,
    work: StepInWork,
    save_at_once: Callable[[State], None],
    was_interrupted: Callable[[], bool],
) -> Iterator[None]:
    """Turn a failed allocation, or a stop near the limit, into a saved run and its message."""
    if not guard.is_active:
        yield
        return
    run, state, failed = work.run, work.state, ""
    with _last_step(work.module, work.optimizer) as last:
        try:
            yield
        except InterruptedRunError as stopped:
            if not guard.is_near or was_interrupted():
                raise
            failed = f"Stopped after step {state.step}"
            raise _stopped(guard, run, failed, f"Step {state.step} is saved.") from stopped
        except Exception as error:
            if not guard.ran_out(error):
                raise
            failed = f"An allocation failed {work.watch.describe(state.step)}"
            traceback.clear_frames(error.__traceback__)  # they hold the tensors of the step
        if not failed:
            return
        can_save = not last.is_updating and num_processes() == 1 and state.step > 0
        for weight in work.module.parameters():
            weight.grad = None
        guard.free()
        guard.use_reserve()
        if can_save:
            last.buffers.restore()
            save_at_once(state)
    raise _stopped(guard, run, failed, f"Step {state.step} is saved." if can_save else _kept(run))


@contextmanager
def report_limit(guard: MemoryGuard, run: Run) -> Iterator[None]:
    """Turn a failed allocation outside the training loop into a message."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryLimitError) or not guard.ran_out(error):
            raise
        raise _stopped(guard, run, "An allocation failed", _kept(run)) from None


def _kept(run: Run) -> str:
    step = run.saved_step
    return f"The checkpoint of step {step} is kept." if step else "No step was saved."


def _stopped(guard: MemoryGuard, run: Run, what: str, saved: str) -> MemoryLimitError:
    message = (
        f"{what}: the run used {show_gb(guard.peak_bytes)} and would have exceeded its limit of "
        f"{guard.limit}. {saved}"
    )
    return MemoryLimitError(message, FIX.format(run=run.path))


@contextmanager
def _last_step(module: nn.Module, optimizer: Any) -> Iterator[_LastStep]:
    last = _LastStep(LastBuffers(module))

    def begin(*_: Any) -> None:
        last.is_updating = True

    def end(*_: Any) -> None:
        last.is_updating = False
        last.buffers.keep()

    hooks = [optimizer.register_step_pre_hook(begin), optimizer.register_step_post_hook(end)]
    try:
        yield last
    finally:
        for hook in hooks:
            hook.remove()
