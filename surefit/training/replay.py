"""Computes steps of a run again, from the checkpoint before them; the run is not changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from surefit.data.cache import use_cache
from surefit.kernels.compiling import compile_layers
from surefit.kernels.deterministic import deterministic_algorithms
from surefit.models.optimizer import make_optimizer
from surefit.pipeline.job import Job
from surefit.plan.plan import Plan
from surefit.progress import Progress, silent
from surefit.request import PythonObjects, Request
from surefit.run.checkpoint_state import State
from surefit.run.choose_checkpoint import Chosen, checkpoint_damage, list_checkpoints, step_of
from surefit.run.run_folder import Run
from surefit.training.engine import (
    Engine,
    make_accelerator,
    make_engine,
)
from surefit.training.loop import Hooks, Pace, train
from surefit.training.restore import restore
from surefit.training.resume import plan_of_run, spread_steps
from surefit.training.schedule import lr_by_step
from surefit.training.start import make_feed, refuse_errors

NO_OBJECTS = PythonObjects()


@dataclass(frozen=True)
class Replay:
    """A run at the checkpoint before a step, ready to compute on."""

    plan: Plan
    run: Run
    engine: Engine
    state: State

    @property
    def job(self) -> Job:
        """What is trained on what."""
        assert self.plan.job is not None
        return self.plan.job

    def train_to(self, step: int) -> list[dict[str, Any]]:
        """Compute the steps up to this one; the events of steps, in order."""
        events: list[dict[str, Any]] = []
        config, job = self.plan.config, self.job
        pace = Pace(
            step,
            clip=config.clip,
            lr_factor=lr_by_step(self.run.spans(job.num_steps), config.warmup, config.schedule),
            skips_nonfinite=config.on_nonfinite == "skip",
        )
        hooks = Hooks(None, lambda state: None, lambda event: events.append(dict(event)), _never)
        with use_cache(config.cache), deterministic_algorithms(config.deterministic):
            train(self.engine, job, make_feed(job, self.engine), pace, hooks, self.state)
        return events


def _never() -> bool:
    return False


def open_replay(
    run: Run, step: int, objects: PythonObjects = NO_OBJECTS, progress: Progress = silent
) -> Replay:
    """The run as it was at the newest whole checkpoint before `step`."""
    request = Request(spread_steps(run, run.config), objects, run.code)
    plan = plan_of_run(run, request, progress)
    refuse_errors(plan)
    assert plan.job is not None
    assert plan.model is not None
    module, config = plan.job.pipeline.module, plan.config
    accelerator = make_accelerator(config.precision)
    optimizer = make_optimizer(
        module, plan.model.lr, config.weight_decay, objects.optimizer, config.lr_by
    )
    earlier = [p for p in reversed(list_checkpoints(run.checkpoints)) if step_of(p) < step]
    whole = next((path for path in earlier if not checkpoint_damage(path)), None)
    state, scaler = restore(Chosen(whole), module, optimizer, plan.model.lr)
    state.stopped_early = False
    if plan.choices.get("compile", {}).get("compiled"):
        compile_layers(module)
    engine = make_engine(accelerator, module, optimizer, frozen=plan.job.frozen_dtype)
    if scaler and accelerator.scaler is not None:
        accelerator.scaler.load_state_dict(scaler)
    return Replay(plan, run, engine, state)
