"""The guards of a run against a signal, the memory limit and a loss that diverges.

Each turns how the block ends into a saved state and a message that says how to resume.
"""

from __future__ import annotations

import math
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from surefit.errors import (
    InterruptedRunError,
    MemoryLimitError,
    RunFailedError,
    StoppedAtOnceError,
    SurefitError,
    to_resume,
)
from surefit.gigabytes import show_gb
from surefit.memory.process_memory import MemoryGuard
from surefit.processes import CURRENT, SAME_SIGNAL_SECONDS, is_main, num_processes, stop_signals
from surefit.run.choose_checkpoint import State, checkpoint_path
from surefit.run.run_folder import Run
from surefit.training.failures import as_disk_failure, saved_step
from surefit.training.saving import save_model_of_step
from surefit.training.watches import DivergedError
from surefit.training.work import Work


class SecondSignal(KeyboardInterrupt):
    """A signal that does not wait for the step to finish."""


@contextmanager
def stop_on_signal(work: Work) -> Iterator[None]:
    """While the block runs, SIGINT, SIGTERM and SIGHUP ask to stop after the step.

    A second signal stops at once, but SIGHUP: a shell and the kernel may both send it.
    """
    first = math.nan

    def ask(number: int, frame: Any) -> None:
        nonlocal first
        if number == signal.SIGTERM and CURRENT.is_ending:
            return
        if time.monotonic() - first < SAME_SIGNAL_SECONDS:
            return
        if work.stop.value and number == signal.SIGHUP:
            return
        if not math.isnan(first):
            raise SecondSignal
        first = time.monotonic()
        work.stop.value = True
        work.listeners.on_stop(number)

    try:
        before = {number: signal.signal(number, ask) for number in stop_signals()}
    except ValueError:  # not the main thread: signals are someone else's
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def finish_saving(work: Work) -> AbstractContextManager[Any]:
    """When the block ends, wait until the checkpoint that is being saved is on the disk."""
    return work.saver


@contextmanager
def report_stops(run: Run, memory: MemoryGuard) -> Iterator[None]:
    """Turn a second signal, a failed allocation or a failed write into a message about the run."""
    try:
        yield
    except SecondSignal:
        saved = run.saved_step
        kept = f"the checkpoint of step {saved} is kept" if saved else "no step was saved"
        raise StoppedAtOnceError(
            f"Stopped at once; the step in work is lost, and {kept}.",
            f"Resume with: {to_resume(run.path)}",
        ) from None
    except Exception as error:
        failure = None if isinstance(error, SurefitError) else as_disk_failure(error, run)
        if failure is not None:
            raise failure from error
        if isinstance(error, MemoryLimitError) or not memory.ran_out(error):
            raise
        raise _stopped(memory, run, "An allocation failed", saved_step(run)) from None


@contextmanager
def stop_at_memory_limit(work: Work) -> Iterator[None]:
    """Turn a failed allocation, or a stop near the limit, into a saved run and its message."""
    run, state, memory, buffers = work.run, work.state, work.memory, work.engine.buffers
    try:
        yield
        return
    except InterruptedRunError as stopped:
        if not memory.is_near or work.stop.value:
            raise
        failed = f"Stopped after step {state.step}"
        raise _stopped(memory, run, failed, f"Step {state.step} is saved.") from stopped
    except Exception as error:
        if not memory.ran_out(error):
            raise
        failed = f"An allocation failed {work.watch.describe(state.step)}"
        traceback.clear_frames(error.__traceback__)  # they hold the tensors of the step
    can_save = not buffers.is_updating and num_processes() == 1 and state.step > 0
    for weight in work.engine.model.parameters():
        weight.grad = None
    memory.free()
    memory.use_reserve()
    if can_save:
        buffers.restore()
        work.saver.save_at_once(state)
    kept = f"Step {state.step} is saved." if can_save else saved_step(run)
    raise _stopped(memory, run, failed, kept)


def _stopped(memory: MemoryGuard, run: Run, what: str, saved: str) -> MemoryLimitError:
    return MemoryLimitError(
        f"{what}: the run used {show_gb(memory.peak_bytes)} and would have exceeded its limit of "
        f"{memory.limit}. {saved}",
        f"Resume with a larger limit: {to_resume(run.path)} --max-memory-gb N. Or "
        "start a new run with a smaller batch_size and a larger grad_accum, checkpointing=true, "
        "LoRA or a shorter max_seq_length.",
    )


@contextmanager
def keep_good_model(work: Work) -> Iterator[None]:
    """Where the loss diverges in the block, make the model of a good step the run's model."""
    run, state = work.run, work.state
    try:
        yield
    except RunFailedError as error:
        cause = error if isinstance(error, DivergedError) else error.__cause__
        if not isinstance(cause, DivergedError) or not is_main():
            raise
        step = good_step(run, state, cause.last_good)
        if step is None:
            kept = "No step was saved before that, so there is no model."
        else:
            how = "the best evaluation" if step == state.best_step else "the last step saved before"
            kept = f"{run.model_path} holds the model of step {step}, {how}."
            try:
                save_model_of_step(work.plan, run, work.engine.skeleton, step, alone=True)
            except RunFailedError as unsaved:
                kept = unsaved.message
        raise RunFailedError((*error.lines, kept), error.fix) from error


def good_step(run: Run, state: State, last_good: int) -> int | None:
    """Return the best step, else the newest checkpoint from before the loss blew up."""
    best = state.best_step
    if best is not None and best <= last_good and checkpoint_path(run.checkpoints, best).is_dir():
        return best
    saved = (int(path.name.removeprefix("step-")) for path in run.checkpoints.glob("step-*[0-9]"))
    return max((step for step in saved if step <= last_good), default=None)
