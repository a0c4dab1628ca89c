"""A run in work: what its guards share, and how they are put around the loop.

A guard is a function of the `Work` that returns a context manager. It turns one kind of ending (a
signal, the memory limit, a loss that diverges, an exception) into what the user gets.
`training/run.py` lists the guards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from surefit.memory.predict_peak import Fit
from surefit.memory.process_memory import MemoryGuard
from surefit.pipeline.pipeline import Job
from surefit.pipeline.step import Rows
from surefit.plan.plan import Plan
from surefit.progress import Progress, silent
from surefit.run.choose_checkpoint import State
from surefit.run.events import Event, Observer
from surefit.run.run_folder import Run
from surefit.training.engine import Engine
from surefit.training.saving import Saver


@dataclass(frozen=True)
class Listeners:
    """Who hears of the plan, of its fit, of progress, of every event and of what happened."""

    observers: tuple[Observer, ...] = ()
    progress: Progress = silent
    on_plan: Callable[[Plan, Path], None] = lambda plan, folder: None
    on_fit: Callable[[Fit], None] = lambda fit: None
    notice: Callable[[str], None] = lambda text: None
    """What happened to the run: a damaged checkpoint, a skipped step, split micro-batches."""
    on_stop: Callable[[int], None] = lambda number: None
    """The first signal to stop, by its number; called in its handler."""


SILENT = Listeners()
Show = Callable[[str], AbstractContextManager[Listeners]]
"""Shows a run under a title."""


@dataclass
class StopRequest:
    """A request to stop after the step."""

    value: bool = False


@dataclass
class Watch:
    """The batch in work, and who hears of the events.

    An exception of an observer is the user's own business (a callback), and is raised as it is.
    """

    batch: Mapping[str, Any] | None = None
    rows: Rows | None = None
    """Rows of the training Store that are in work."""
    is_training: bool = True
    observers: Sequence[Observer] = ()
    checks: Sequence[Observer] = ()
    """Checks of what is learned, which may emit warnings or stop the run."""
    foreign: BaseException | None = None
    """The exception of an observer."""

    def note(self, batch: Mapping[str, Any]) -> None:
        """Note the batch that the model is about to be called on."""
        import torch

        self.batch, self.is_training = batch, torch.is_grad_enabled()

    def note_rows(self, rows: Rows) -> None:
        """Note the rows of the training Store that are in work."""
        self.rows = rows

    def forget(self) -> None:
        """Forget the batch, so that its memory can be used."""
        self.batch, self.is_training = None, True

    def emit(self, event: Event) -> None:
        """Pass an event to the observers, then to the checks; the batch is done with."""
        self.batch = None
        try:
            for observe in self.observers:
                observe(event)
        except BaseException as error:
            self.foreign = error
            raise
        for check in self.checks:
            check(event)

    def describe(self, step: int) -> str:
        """Return what was in work after `step` steps, with the shapes of its batch."""
        where = f"in step {step + 1}" if self.is_training else f"in the evaluation of step {step}"
        return f"{where} ({self.shapes})" if self.shapes else where

    @property
    def shapes(self) -> str:
        """Return the shapes and dtypes of the batch in one line."""
        return ", ".join(shapes_of(self.batch or {}).values())


def shapes_of(batch: Mapping[str, Any]) -> dict[str, str]:
    """Return the name, shape and dtype of each tensor of a batch."""
    tensors = {name: value for name, value in batch.items() if hasattr(value, "shape")}
    return {
        name: f"{name} {list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        for name, value in tensors.items()
    }


@dataclass(frozen=True)
class Work:
    """A run in work: its plan and folder, what computes its steps, and how far it is."""

    plan: Plan
    run: Run
    listeners: Listeners
    memory: MemoryGuard
    engine: Engine
    state: State
    saver: Saver
    watch: Watch = field(default_factory=Watch)
    stop: StopRequest = field(default_factory=StopRequest)

    @property
    def job(self) -> Job:
        """Return what is trained on what."""
        assert self.plan.job is not None
        return self.plan.job


Guard = Callable[[Work], AbstractContextManager[Any]]


@contextmanager
def guarded(guards: Sequence[Guard], work: Work) -> Iterator[None]:
    """Run the block within the guards; the first is the outermost."""
    with ExitStack() as stack:
        for guard in guards:
            stack.enter_context(guard(work))
        yield
