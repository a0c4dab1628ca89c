"""Training on a stream: its position in checkpoints, and its end."""

from __future__ import annotations

from surefit.pipeline.job import Job
from surefit.pipeline.pipeline import Pipeline
from surefit.pipeline.stream_windows import StreamEndedError, StreamWindows
from surefit.progress import Progress
from surefit.run.checkpoint_state import State
from surefit.training.engine import Engine
from surefit.training.loop import Hooks, Pace, last_place, note_evaluation, train
from surefit.training.step_gradients import Feed


def note_position(pipeline: Pipeline, state: State) -> None:
    """Note in the State of a run where its stream is."""
    if isinstance(pipeline.live, StreamWindows):
        state.stream = pipeline.live.position()


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
            epoch = last_place(job.batches, state, pace).epoch + 1
            note_evaluation(hooks.evaluate(), state.step, epoch, pace, state, hooks.emit)
        hooks.save(state)
