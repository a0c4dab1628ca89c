"""Who hears the events of a run: its file, the display, callbacks, trackers and the checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from surefit.pipeline.own_step import OwnStep
from surefit.pipeline.pipeline import Job
from surefit.processes import is_main
from surefit.run.events import Event, Observer, event_writer, read_events
from surefit.targets.baselines import judge_by_trees
from surefit.training.watches import LossWatch, check_trained, warning_event, watch_first_steps
from surefit.training.work import Work

if TYPE_CHECKING:
    from accelerate import Accelerator


@contextmanager
def write_events(work: Work) -> Iterator[None]:
    """While the block runs, let the main process write and show events, and all check them."""
    work.watch.checks = _checks(work)
    if not is_main():
        yield
        return
    with event_writer(work.run.events_path) as write:
        trackers: list[Observer] = []
        if work.plan.config.trackers:
            work.engine.accelerator.init_trackers("surefit")
            trackers = [partial(_track, work.engine.accelerator)]
        callbacks = work.plan.objects.callbacks
        work.watch.observers = (write, *work.listeners.observers, *callbacks, *trackers)
        yield
    for tracker in work.engine.accelerator.trackers:
        tracker.finish()  # and not end_training: further runs of this process use its group


def _checks(work: Work) -> list[Observer]:
    """Return the checks of what is learned.

    Every process checks that what is to be trained takes gradients, and where the run is new, that
    the first steps move it; and that the loss neither blows up nor stays.
    """
    assert work.plan.model is not None
    module, adaptation = work.job.pipeline.module, work.plan.model.adaptation
    checks: list[Observer] = []
    if isinstance(work.job.pipeline.loss, OwnStep):  # the sum of its losses need not fall
        return checks
    if adaptation is not None:
        check_trained(module, adaptation.trained)
    if work.state.step == 0:
        meant = adaptation.trained - adaptation.not_in_every_batch if adaptation is not None else ()
        optimizer = work.engine.plain_optimizer
        checks.append(watch_first_steps(module, optimizer, meant, work.watch.emit))
    losses = LossWatch(work.watch.emit, work.job.num_steps, _prior_loss(work.job))
    for event in read_events(work.run.events_path):
        losses.remember(event)
    return [*checks, losses.observe]


def _prior_loss(job: Job) -> float | None:
    """Return the training loss of a predictor that ignores the inputs; None where there is none."""
    measure = job.pipeline.task.figures.baselines
    if measure is None:
        return None
    known = measure(job.train, job.train, job.pipeline.encoder).values()
    return next((figures["loss"] for figures in known if "loss" in figures), None)


def _track(accelerator: Accelerator, event: Event) -> None:
    if event["event"] == "warning":
        return
    values = event["metrics"] if event["event"] == "eval" else event
    prefix = "eval/" if event["event"] == "eval" else "train/"
    numbers = {
        prefix + name: value
        for name, value in values.items()
        if isinstance(value, int | float) and name != "step"
    }
    accelerator.log(numbers, step=event["step"])


def judge_best_step(work: Work) -> None:
    """Compare the best step of a run that has come to its end with the trees of its plan."""
    job, run, state, history = work.job, work.run, work.state, work.run.history
    evals = [event for event in history if event["event"] == "eval"]
    best = next((e for e in evals if e["step"] == state.best_step), None)
    if best is None or not is_main() or work.job.pipeline.counts_in_loss:
        return
    if state.step < job.batches.steps_per_epoch:
        return  # fewer steps than one epoch say nothing about the network
    found = judge_by_trees(best["metrics"], run.plan.get("baselines", {}), len(job.validation))
    if found is None:
        return
    event = warning_event(found, state.step, evals[-1]["epoch"])
    if event not in history:  # written before the process was killed
        work.watch.emit(event)
