"""The guards of a run: against signals, the memory limit, a diverging loss, a failing disk or step.

Each turns how the block ends into a saved state and a message that says how to resume.
`failures/step-N/` in the run's folder holds the batch of a step that failed (safetensors), the
traceback, and the versions and seed (failure.json). Resuming the run repeats the step to the bit.
"""

from __future__ import annotations

import errno
import importlib.metadata
import math
import os
import platform
import shutil
import signal
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit import __version__
from surefit.core import files
from surefit.errors import (
    InterruptedRunError,
    MemoryLimitError,
    RunFailedError,
    StoppedAtOnceError,
    SurefitError,
    message_of,
    to_resume,
)
from surefit.explainer import Explanation, explain
from surefit.gigabytes import show_gb, show_size
from surefit.memory.process_memory import MemoryGuard
from surefit.processes import (
    CURRENT,
    SAME_SIGNAL_SECONDS,
    has_lost_process,
    is_main,
    num_processes,
    process_index,
    stop_signals,
)
from surefit.run.choose_checkpoint import State, checkpoint_path, latest_checkpoint
from surefit.run.events import without_nan
from surefit.run.run_folder import Run
from surefit.training.loop import NonFiniteError
from surefit.training.saving import save_model_of_step
from surefit.training.watches import DivergedError
from surefit.training.work import Work, shapes_of

if TYPE_CHECKING:
    import torch


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


LIBRARIES = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "datasets",
    "safetensors",
    "numpy",
    "bitsandbytes",
)
FORMAT_VERSION = 1
SHOWN_ROWS = 12


FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_WORDS = tuple(os.strerror(code) for code in FULL)
"""Libraries that are not written in Python name the error without its number."""
FAILING = (errno.EROFS, errno.EIO)
FAILING_WORDS = tuple(os.strerror(code) for code in FAILING)
FORBIDDEN = (errno.EACCES, errno.EPERM, *FAILING)


def as_disk_failure(error: BaseException, run: Run) -> RunFailedError | None:
    """Return what a failed write means for the run; None for other errors."""
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
        f"{place} cannot be written: {os.strerror(code) if code else words}. {saved_step(run)}",
        f"Make it writable, then resume with: {to_resume(run.path)}",
    )


def _full(error: BaseException, run: Run) -> RunFailedError:
    name = Path(str(getattr(error, "filename", None) or run.path))
    place = next((each for each in (name, *name.parents) if each.exists()), run.path)
    free = shutil.disk_usage(place).free
    return RunFailedError(
        f"The disk of {place} is full ({show_size(free)} free). {saved_step(run)}",
        f"Free some space, then resume with: {to_resume(run.path)}. `--set keep=1` "
        "keeps one checkpoint besides the best instead of two.",
    )


def saved_step(run: Run) -> str:
    """Return what a message says about the latest checkpoint."""
    step = run.saved_step
    return f"The checkpoint of step {step} is intact." if step else "No step was saved."


@contextmanager
def bundle_failure(work: Work) -> Iterator[None]:
    """Turn what fails in the block into a RunFailedError that explains it and names a bundle."""
    try:
        yield
    except Exception as error:
        ours = isinstance(error, SurefitError) and not isinstance(error, RunFailedError)
        if ours or isinstance(error, MemoryLimitError) or error is work.watch.foreign:
            raise
        if has_lost_process(error):
            raise  # `distributed_run` finds out which one
        on_disk = as_disk_failure(error, work.run)
        if on_disk is not None:
            raise on_disk from error
        if not work.run.path.is_dir():  # deleted meanwhile: there is no place for a bundle
            raise
        raise _failed(error, work) from error


def _failed(error: Exception, work: Work) -> RunFailedError:
    explained, watch, step = explain(error), work.watch, _step(work)
    if isinstance(error, RunFailedError):
        lines, fix = list(error.lines), error.fix
    else:
        stage = "Training failed at" if watch.is_training else "Evaluation failed after"
        lines = [f"{stage} step {step}: {type(error).__name__}: {_first_line(error)}"]
        known = f"{explained.code} {explained.title}.", *explained.derived
        cause = " ".join(known) if explained.known else "not known; --debug shows the traceback"
        lines.append(f"cause: {cause}")
        fix = explained.fix or "Send the bundle's failure.json and traceback.txt."
    if watch.batch is not None:
        lines.append(f"batch: {watch.shapes}")
    if rows := _source_rows(work):
        lines.append(f"rows: {show_rows(rows)} (numbers from 0)")
    try:
        folder = write_bundle(error, explained, work)
        lines.append(f"bundle: {folder} (its batch, traceback and versions)")
    except OSError as fault:
        lines.append(f"bundle: could not be written ({fault})")
    failed = RunFailedError(lines, fix.replace("explain RUN", f"explain {work.run.path}"))
    failed.is_printed = getattr(error, "is_printed", False)  # type: ignore[attr-defined]
    return failed


def _step(work: Work) -> int:
    """Return the step in work, or the one that is evaluated."""
    return work.state.step + (1 if work.watch.is_training else 0)


def _source_rows(work: Work) -> list[int]:
    """Return the numbers of the rows in work, in the training data."""
    if work.watch.rows is None or not work.watch.is_training:
        return []
    return [int(row) for row in work.job.train.source_row[work.watch.rows]]


def show_rows(rows: list[int]) -> str:
    """Return row numbers for a message.

    >>> show_rows([3, 17])
    '3, 17'
    """
    more = f" and {len(rows) - SHOWN_ROWS} more" if len(rows) > SHOWN_ROWS else ""
    return ", ".join(map(str, rows[:SHOWN_ROWS])) + more


def _first_line(error: BaseException) -> str:
    return (message_of(error).strip().splitlines() or [""])[0]


def write_bundle(error: Exception, explained: Explanation, work: Work) -> Path:
    """Write what is needed to see the failure again; a bundle of the same step is replaced."""
    from safetensors.torch import save_file

    process, watch, step = process_index(), work.watch, _step(work)
    name = f"step-{step}" + (f"-process-{process}" if process else "")
    latest = latest_checkpoint(work.run.checkpoints)
    tensors, unreadable = _on_cpu(watch.batch or {})
    about = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "stage": "training" if watch.is_training else "evaluation",
        "seed": work.plan.config.seed,
        "process": process,
        "error": {"type": type(error).__name__, "message": message_of(error)},
        "explanation": explained.as_dict(),
        "batch": shapes_of(watch.batch or {}),
        "batch_not_saved": unreadable,
        "rows": _source_rows(work),
        "nonfinite": isinstance(error, NonFiniteError),
        "checkpoint": latest.name if latest is not None else None,
        "versions": versions(),
    }
    folder = work.run.path / "failures" / name
    with files.new_folder(folder, sealed=True) as temporary:
        save_file(tensors, str(temporary / "batch.safetensors"))
        files.write_json(temporary / "failure.json", without_nan(about))
        lines = traceback.format_exception(error)
        files.write_text(temporary / "traceback.txt", "".join(lines))
    return folder


def _on_cpu(batch: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return copies of the batch's tensors, and why one is missing, as on a failed GPU."""
    import torch

    tensors: dict[str, torch.Tensor] = {}
    reasons: dict[str, str] = {}
    for name, value in batch.items():
        if not isinstance(value, torch.Tensor):
            reasons[name] = f"a {type(value).__name__}, no tensor"
            continue
        try:
            tensors[name] = value.detach().cpu().clone().contiguous()
        except RuntimeError as error:
            reasons[name] = _first_line(error)
    return tensors, reasons


def versions() -> dict[str, str | None]:
    """Return the versions of Python, surefit and its libraries; null for one not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "surefit": __version__}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
