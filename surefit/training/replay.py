"""Computes steps of a run again, from the checkpoint before them; the run is not changed.

`verify --step` compares a step with its event to the bit; `explain RUN` finds the row that made a
step non-finite, by computing it without each row in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from surefit.batches.order import Share
from surefit.core.foreign import read_json
from surefit.data.cache import use_cache
from surefit.errors import UsageError
from surefit.findings import Finding, note, rule
from surefit.models.learning_rate import Schedule
from surefit.pipeline.pipeline import Job
from surefit.pipeline.step import Place, Rows, StepBatches, add_gradients
from surefit.plan.plan import Plan
from surefit.progress import Progress, silent
from surefit.request import PythonObjects, Request
from surefit.run.choose_checkpoint import (
    Chosen,
    State,
    checkpoint_damage,
    list_checkpoints,
    step_of,
)
from surefit.run.events import without_nan
from surefit.run.run_folder import Run
from surefit.speed.clipping import make_clipper
from surefit.speed.numerics import deterministic_algorithms
from surefit.training.engine import Engine
from surefit.training.guards import show_rows
from surefit.training.loop import Hooks, Pace, find_nonfinite, seed_step, train
from surefit.training.own_steps import factors_by_part
from surefit.training.resume import plan_of_run, spread_steps
from surefit.training.run import open_engine, refuse_errors
from surefit.training.schedule import make_feed, places, split_share

NO_OBJECTS = PythonObjects()
Trial = Callable[[Sequence[Rows]], str]


@dataclass(frozen=True)
class Replay:
    """A run at the checkpoint before a step, ready to compute on."""

    plan: Plan
    run: Run
    engine: Engine
    state: State

    @property
    def job(self) -> Job:
        """Return what is trained on what."""
        assert self.plan.job is not None
        return self.plan.job

    def train_to(self, step: int) -> list[dict[str, Any]]:
        """Compute the steps up to this one; the events of steps, in order."""
        events: list[dict[str, Any]] = []
        config, job = self.plan.config, self.job
        spans = self.run.spans(job.num_steps)
        pace = Pace(
            step,
            clip=config.clip,
            lr_factor=Schedule.of(config).by_step(spans),
            lr_by_part=factors_by_part(job, spans),
            skips_nonfinite=config.on_nonfinite == "skip",
        )
        hooks = Hooks(
            None, lambda state: None, lambda event: events.append(dict(event)), lambda: False
        )
        with use_cache(config.cache), deterministic_algorithms(config.deterministic):
            train(self.engine, job, make_feed(job, self.engine), pace, hooks, self.state)
        return events


def open_replay(
    run: Run, step: int, objects: PythonObjects = NO_OBJECTS, progress: Progress = silent
) -> Replay:
    """Return the run as it was at the newest whole checkpoint before `step`."""
    request = Request(spread_steps(run, run.config), objects, run.code)
    plan = plan_of_run(run, request, progress)
    refuse_errors(plan)
    earlier = [p for p in reversed(list_checkpoints(run.checkpoints)) if step_of(p) < step]
    whole = next((path for path in earlier if not checkpoint_damage(path)), None)
    engine, state = open_engine(plan, run, Chosen(whole))
    state.stopped_early = False
    return Replay(plan, run, engine, state)


OTHER_STEP = rule(
    "SF806",
    "error",
    "a step gives another result when it is computed again",
    why="On the same machine with the same versions a step is exactly repeatable. The event was "
    "edited, or the data, the code, the libraries or the hardware differ.",
    fix="Compare the versions in the plan and in the environment, and test the memory.",
)


def verify_step(
    run: Run, step: int, objects: PythonObjects = NO_OBJECTS, progress: Progress = silent
) -> list[Finding]:
    """Recompute the steps from the checkpoint before `step` up to it, and compare their events."""
    stored = {event["step"]: event for event in run.history if event["event"] == "step"}
    if step not in stored:
        last = max(stored, default=0)
        raise UsageError(f"{run.path} has the steps 1 to {last}, not {step}.", "Choose one.")
    replay, before = open_replay(run, step, objects, progress), int(run.plan["num_processes"])
    where = str(run.events_path)
    for event in replay.train_to(step):
        differs = _differences(stored[event["step"]], event, exact=before == 1)
        if differs:
            message = f"Step {event['step']}: {'; '.join(differs)}."
            return [OTHER_STEP.finding(message, file=where)]
    message = (
        f"Step {step} was trained by {before} processes and computed again by one: its tokens and "
        "learning rate were compared, and not its loss, as each process draws its own dropout."
    )
    return [] if before == 1 else [note(message, file=where)]


def _differences(stored: dict[str, Any], again: dict[str, Any], exact: bool) -> list[str]:
    """Describe what differs; unless `exact`, losses may."""
    again = without_nan(again)
    return [
        f"{name} is {stored.get(name)!r} in the events and {again.get(name)!r} computed again"
        for name in {**stored, **again}
        if name != "seconds" and (exact or "loss" not in name)
        if stored.get(name) != again.get(name)
    ]


@dataclass(frozen=True)
class BadRows:
    """The step that failed, the rows that did it (of the training data, from 0), and how."""

    step: int
    rows: list[int]
    step_rows: list[int]
    fault: str
    alone: bool = False
    """Whether each of the rows fails alone, since leaving out one of them is not enough."""

    def __str__(self) -> str:
        if not self.fault:
            return (
                f"Step {self.step} is finite when it is computed again, with its rows "
                f"{show_rows(self.step_rows)}. The cause is not a row: look at the hardware, "
                "overclocking and drivers, and resume the run."
            )
        if not self.rows:
            return (
                f"{self.fault} at step {self.step} also without any single one of its rows "
                f"{show_rows(self.step_rows)}, and no row fails alone: the cause is in the "
                "weights or the model. Lower --lr, keep clip above 0, or use precision=fp32."
            )
        which = f"row {self.rows[0]}" if len(self.rows) == 1 else f"rows {show_rows(self.rows)}"
        how = "each fails alone" if self.alone else "without it the step is finite"
        return (
            f"{self.fault} at step {self.step}: {which} of the training data (from 0) did it; "
            f"{how}. The step had the rows {show_rows(self.step_rows)}."
        )

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "message": str(self)}


def failed_step(run: Run) -> dict[str, Any] | None:
    """Return the latest bundle of a step that was not finite, if the run has one."""
    found = []
    for path in sorted((run.path / "failures").glob("step-*/failure.json")):
        about = read_json(path, dict[str, Any], "Resume the run to see its failure.")
        if about.get("nonfinite"):
            found.append(about)
    return max(found, key=lambda about: int(about["step"]), default=None)


def find_bad_rows(
    run: Run,
    step: int,
    objects: PythonObjects = NO_OBJECTS,
    progress: Progress = silent,
) -> BadRows:
    """Compute the step again: with all of its rows, without each in turn, then each alone."""
    replay = open_replay(run, step, objects, progress)
    config = replay.plan.config
    if replay.state.step < step - 1:
        replay.train_to(step - 1)
    place = next(places(replay.job.batches, step - 1, step))
    share = replay.job.batches.share(place.epoch, place.index, 0)
    share = split_share(share, replay.state.splits)
    rows = np.concatenate(share.micro_batches)
    numbers = [int(row) for row in replay.job.train.source_row[rows]]
    with use_cache(config.cache), deterministic_algorithms(config.deterministic):
        trial = _make_trial(replay, place)
        fault = trial(share.micro_batches)
        if not fault:
            return BadRows(step, [], numbers, "")
        suspects = [batch for batch in share.micro_batches if trial([batch])] or [rows]
        guilty: list[int] = []
        if len(suspects) == 1:
            guilty = _without_each(trial, suspects[0], progress)
        alone = not guilty
        if alone:
            each = [row for batch in suspects for row in batch]
            guilty = [int(row) for row in each if trial([np.array([row])])]
    named = sorted({int(replay.job.train.source_row[row]) for row in guilty})
    return BadRows(step, named, numbers, fault, alone and bool(named))


def _without_each(trial: Trial, rows: Rows, progress: Progress) -> list[int]:
    """Return the rows without which a micro-batch is finite."""
    guilty = []
    for index, row in enumerate(rows):
        progress("replaying the step without each row", index + 1, len(rows))
        left = np.delete(rows, index)
        if len(left) == 0 or not trial([left]):
            guilty.append(int(row))
    return guilty


def _make_trial(replay: Replay, place: Place) -> Trial:
    """Return a function of some rows of the step: what is not finite about it, or nothing."""
    engine, job = replay.engine, replay.job
    engine.model.train()
    parameters = [p for p in engine.model.parameters() if p.requires_grad]
    unscaled = replace(engine.processes, backward=None)
    norm = make_clipper(engine.accelerator, None, parameters, 0.0)

    def compute(micro_batches: Sequence[Rows]) -> str:
        seed_step(job.pipeline.seed, place.step, engine.accelerator.process_index)
        loaded = (job.batch(rows, place.epoch) for rows in micro_batches)
        step = StepBatches(place, Share(tuple(micro_batches), 1.0), loaded)
        sums = add_gradients(unscaled, job, step)
        fault = find_nonfinite(sums.loss + (sums.added or 0.0), norm())
        for parameter in parameters:
            parameter.grad = None
        engine.buffers.restore()
        return fault

    return compute
