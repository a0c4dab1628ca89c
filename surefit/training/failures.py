"""What a failing step leaves behind: its cause in plain words, and a bundle with its batch.

`failures/step-N/` in the run's folder holds the batch (safetensors), the traceback, and the
versions and seed (failure.json). Resuming the run repeats the step to the bit.
"""

from __future__ import annotations

import importlib.metadata
import platform
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit import __version__
from surefit.core import files
from surefit.errors import MemoryLimitError, RunFailedError, SurefitError, message_of
from surefit.explainer import Explanation, explain
from surefit.pipeline.step import Rows
from surefit.plan.plan import Plan
from surefit.processes import has_lost_process, process_index
from surefit.run.choose_checkpoint import State, latest_checkpoint
from surefit.run.events import Event, Observer, without_nan
from surefit.run.run_folder import Run
from surefit.training.engine import Engine
from surefit.training.loop import NonFiniteError
from surefit.training.stops import as_disk_failure

if TYPE_CHECKING:
    import torch

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


@dataclass
class Watch:
    """Remembers the batch in work, and whose fault an exception is."""

    batch: Mapping[str, Any] | None = None
    rows: Rows | None = None
    """Rows of the training Store that are in work."""
    is_training: bool = True
    foreign: BaseException | None = None
    """An exception of a callback: the user's own business, and raised as it is."""

    def note(self, batch: Mapping[str, Any]) -> None:
        """The model is about to be called on this batch."""
        import torch

        self.batch, self.is_training = batch, torch.is_grad_enabled()

    def note_rows(self, rows: Rows) -> None:
        """These rows of the training Store are in work."""
        self.rows = rows

    def describe(self, step: int) -> str:
        """What was in work after `step` steps, with the shapes of its batch."""
        where = f"in step {step + 1}" if self.is_training else f"in the evaluation of step {step}"
        shapes = ", ".join(_shown(self.batch or {}).values())
        return f"{where} ({shapes})" if shapes else where

    def pass_on(self, event: Event, observers: Sequence[Observer]) -> None:
        """Give an event to the writer, the trackers and callbacks: a batch is done with."""
        self.batch = None
        try:
            for observe in observers:
                observe(event)
        except BaseException as error:
            self.foreign = error
            raise


@dataclass(frozen=True)
class StepInWork:
    """A run, what computes its steps, how far it is, and the batch in work."""

    run: Run
    engine: Engine
    state: State
    watch: Watch


@contextmanager
def bundled(work: StepInWork, plan: Plan) -> Iterator[None]:
    """Turn what fails in the block into a RunFailedError that explains it and names a bundle."""
    run, watch = work.run, work.watch
    try:
        yield
    except Exception as error:
        ours = isinstance(error, SurefitError) and not isinstance(error, RunFailedError)
        if ours or isinstance(error, MemoryLimitError) or error is watch.foreign:
            raise
        if has_lost_process(error):
            raise  # `distributed_run` finds out which one
        on_disk = as_disk_failure(error, run)
        if on_disk is not None:
            raise on_disk from error
        step = work.state.step + (1 if watch.is_training else 0)
        if not run.path.is_dir():  # deleted meanwhile: there is no place for a bundle
            raise
        raise _failed(error, watch, plan, run, step) from error


def _failed(error: Exception, watch: Watch, plan: Plan, run: Run, step: int) -> RunFailedError:
    explained = explain(error)
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
        lines.append(f"batch: {', '.join(_shown(watch.batch).values())}")
    rows = _source_rows(watch, plan)
    if rows:
        lines.append(f"rows: {show_rows(rows)} (numbers from 0)")
    try:
        folder = write_bundle(error, explained, watch, plan, run, step)
        lines.append(f"bundle: {folder} (its batch, traceback and versions)")
    except OSError as fault:
        lines.append(f"bundle: could not be written ({fault})")
    failed = RunFailedError(lines, fix.replace("explain RUN", f"explain {run.path}"))
    failed.is_told = getattr(error, "is_told", False)  # type: ignore[attr-defined]
    return failed


def _source_rows(watch: Watch, plan: Plan) -> list[int]:
    """Numbers of the rows in work, in the training data."""
    if watch.rows is None or plan.job is None or not watch.is_training:
        return []
    return [int(row) for row in plan.job.train.source_row[watch.rows]]


def show_rows(rows: list[int]) -> str:
    """Row numbers for a message.

    >>> show_rows([3, 17])
    '3, 17'
    """
    more = f" and {len(rows) - SHOWN_ROWS} more" if len(rows) > SHOWN_ROWS else ""
    return ", ".join(map(str, rows[:SHOWN_ROWS])) + more


def _first_line(error: BaseException) -> str:
    return (message_of(error).strip().splitlines() or [""])[0]


def write_bundle(
    error: Exception, explained: Explanation, watch: Watch, plan: Plan, run: Run, step: int
) -> Path:
    """Write what is needed to see the failure again; a bundle of the same step is replaced."""
    from safetensors.torch import save_file

    process = process_index()
    name = f"step-{step}" + (f"-process-{process}" if process else "")
    latest = latest_checkpoint(run.checkpoints)
    tensors, unreadable = _on_cpu(watch.batch or {})
    about = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "stage": "training" if watch.is_training else "evaluation",
        "seed": plan.config.seed,
        "process": process,
        "error": {"type": type(error).__name__, "message": message_of(error)},
        "explanation": explained.as_dict(),
        "batch": _shown(watch.batch or {}),
        "batch_not_saved": unreadable,
        "rows": _source_rows(watch, plan),
        "nonfinite": isinstance(error, NonFiniteError),
        "checkpoint": latest.name if latest is not None else None,
        "versions": versions(),
    }
    folder = run.path / "failures" / name
    with files.new_folder(folder, sealed=True) as temporary:
        save_file(tensors, str(temporary / "batch.safetensors"))
        files.write_json(temporary / "failure.json", without_nan(about))
        lines = traceback.format_exception(error)
        files.write_text(temporary / "traceback.txt", "".join(lines))
    return folder


def _on_cpu(batch: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Copies of the batch's tensors, and why others are not there: a failed GPU gives none back."""
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


def _shown(batch: Mapping[str, Any]) -> dict[str, str]:
    tensors = {name: value for name, value in batch.items() if hasattr(value, "shape")}
    return {
        name: f"{name} {list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        for name, value in tensors.items()
    }


def versions() -> dict[str, str | None]:
    """Of Python, surefit and the libraries it stands on; null for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "surefit": __version__}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
