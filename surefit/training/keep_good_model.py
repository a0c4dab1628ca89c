"""What is kept of a run that has diverged: the best model, or the last one before the loss rose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from surefit.errors import RunFailedError
from surefit.processes import is_main
from surefit.run.checkpoint_state import State
from surefit.run.choose_checkpoint import checkpoint_path
from surefit.run.run_folder import Run
from surefit.training.watch_loss import DivergedError


@contextmanager
def keeping_good_model(run: Run, state: State, save_step: Callable[[int], None]) -> Iterator[None]:
    """Where the block diverges, `save_step` makes the model of a good step the run's model."""
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
