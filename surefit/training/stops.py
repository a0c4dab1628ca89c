"""What stops a run: a signal, the memory limit, a disk that fails, a loss that diverges."""

from __future__ import annotations

import errno
import math
import mmap
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.errors import (
    InterruptedRunError,
    MemoryLimitError,
    RunFailedError,
    StoppedAtOnceError,
    SurefitError,
    message_of,
)
from surefit.gigabytes import show_gb, show_size
from surefit.memory.process_memory import MemoryGuard
from surefit.processes import CURRENT, SAME_SIGNAL_SECONDS, is_main, num_processes, stop_signals
from surefit.run.choose_checkpoint import State, checkpoint_path
from surefit.run.run_folder import Run
from surefit.training.guards import DivergedError

if TYPE_CHECKING:
    from surefit.training.failures import StepInWork


class SecondSignal(KeyboardInterrupt):
    """A signal that does not wait for the step to finish."""


class StopRequest:
    """Whether a signal asked to stop: one byte that forked worker processes share."""

    def __init__(self) -> None:
        self._asked = mmap.mmap(-1, 1)

    @property
    def value(self) -> bool:
        """Whether this process or one of its workers was asked to stop."""
        return self._asked[0] != 0

    def ask(self) -> None:
        """Ask to stop after the step."""
        self._asked[0] = 1


@contextmanager
def stop_on_signal(on_stop: Callable[[int], None] = lambda number: None) -> Iterator[StopRequest]:
    """While the block runs, SIGINT, SIGTERM and SIGHUP ask to stop after the step.

    A second signal stops at once, but SIGHUP: a shell and the kernel may both send it.

    `on_stop` is called with the number of the first one, in the signal handler.
    """
    request, first = StopRequest(), math.nan

    def ask(number: int, frame: Any) -> None:
        nonlocal first
        if number == signal.SIGTERM and CURRENT.is_ending:
            return
        if time.monotonic() - first < SAME_SIGNAL_SECONDS:
            return
        if request.value and number == signal.SIGHUP:
            return
        if not math.isnan(first):
            raise SecondSignal
        first = time.monotonic()
        request.ask()
        on_stop(number)

    try:
        before = {number: signal.signal(number, ask) for number in stop_signals()}
    except ValueError:  # not the main thread: signals are someone else's
        yield request
        return
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def report_stops(run: Run, guard: MemoryGuard) -> Iterator[None]:
    """Turn a second signal, a failed allocation or a failed write into a message about the run."""
    try:
        yield
    except SecondSignal:
        saved = run.saved_step
        kept = f"the checkpoint of step {saved} is kept" if saved else "no step was saved"
        raise StoppedAtOnceError(
            f"Stopped at once; the step in work is lost, and {kept}.",
            f"Resume with: surefit train --resume {run.path}",
        ) from None
    except Exception as error:
        failure = None if isinstance(error, SurefitError) else as_disk_failure(error, run)
        if failure is not None:
            raise failure from error
        if isinstance(error, MemoryLimitError) or not guard.ran_out(error):
            raise
        raise _stopped(guard, run, "An allocation failed", _saved(run)) from None


FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_WORDS = tuple(os.strerror(code) for code in FULL)
"""Libraries that are not written in Python name the error without its number."""
FAILING = (errno.EROFS, errno.EIO)
FAILING_WORDS = tuple(os.strerror(code) for code in FAILING)
FORBIDDEN = (errno.EACCES, errno.EPERM, *FAILING)


def as_disk_failure(error: BaseException, run: Run) -> RunFailedError | None:
    """What a failed write means for the run; None for other errors."""
    code = error.errno if isinstance(error, OSError) else None
    if code in FULL or any(words in message_of(error) for words in FULL_WORDS):
        return _full(error, run)
    name = str(getattr(error, "filename", None) or "")
    is_ours = code in FORBIDDEN and name.startswith(str(run.path))
    words = next((words for words in FAILING_WORDS if words in message_of(error)), "")
    if not is_ours and code not in FAILING and not words:
        return None
    place = name if is_ours else run.path
    return RunFailedError(
        f"{place} cannot be written: {os.strerror(code) if code else words}. {_saved(run)}",
        f"Make it writable, then resume with: surefit train --resume {run.path}",
    )


def _full(error: BaseException, run: Run) -> RunFailedError:
    name = Path(str(getattr(error, "filename", None) or run.path))
    place = next((each for each in (name, *name.parents) if each.exists()), run.path)
    free = shutil.disk_usage(place).free
    return RunFailedError(
        f"The disk of {place} is full ({show_size(free)} free). {_saved(run)}",
        f"Free some space, then resume with: surefit train --resume {run.path}. `--set keep=1` "
        "keeps one checkpoint besides the best instead of two.",
    )


def _saved(run: Run) -> str:
    step = run.saved_step
    return f"The checkpoint of step {step} is intact." if step else "No step was saved."


FIX = (
    "Resume with a larger limit: surefit train --resume {run} --max-memory-gb N. Or start a new "
    "run with a smaller batch_size and a larger grad_accum, checkpointing=true, LoRA or a shorter "
    "max_seq_length."
)


@contextmanager
def stop_at_limit(
    guard: MemoryGuard,
    work: StepInWork,
    save_at_once: Callable[[State], None],
    was_interrupted: Callable[[], bool],
) -> Iterator[None]:
    """Turn a failed allocation, or a stop near the limit, into a saved run and its message."""
    run, state, buffers = work.run, work.state, work.engine.buffers
    try:
        yield
        return
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
    can_save = not buffers.is_updating and num_processes() == 1 and state.step > 0
    for weight in work.engine.model.parameters():
        weight.grad = None
    guard.free()
    guard.use_reserve()
    if can_save:
        buffers.restore()
        save_at_once(state)
    raise _stopped(guard, run, failed, f"Step {state.step} is saved." if can_save else _saved(run))


def _stopped(guard: MemoryGuard, run: Run, what: str, saved: str) -> MemoryLimitError:
    message = (
        f"{what}: the run used {show_gb(guard.peak_bytes)} and would have exceeded its limit of "
        f"{guard.limit}. {saved}"
    )
    return MemoryLimitError(message, FIX.format(run=run.path))


@contextmanager
def keeping_good_model(work: StepInWork, save_step: Callable[[int], None]) -> Iterator[None]:
    """Where the block diverges, `save_step` makes the model of a good step the run's model."""
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
                save_step(step)
            except RunFailedError as unsaved:
                kept = unsaved.message
        raise RunFailedError((*error.lines, kept), error.fix) from error


def good_step(run: Run, state: State, last_good: int) -> int | None:
    """The best step, else the newest checkpoint from before the loss blew up."""
    best = state.best_step
    if best is not None and best <= last_good and checkpoint_path(run.checkpoints, best).is_dir():
        return best
    saved = (int(path.name.removeprefix("step-")) for path in run.checkpoints.glob("step-*[0-9]"))
    return max((step for step in saved if step <= last_good), default=None)
