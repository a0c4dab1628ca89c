"""Computes one step of a run again and compares it with its event to the bit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.progress import Progress, silent
from surefit.request import PythonObjects
from surefit.run.events import without_nan
from surefit.run.run_folder import Run
from surefit.training.replay import NO_OBJECTS, open_replay

if TYPE_CHECKING:
    from torch import nn

OTHER_STEP = rule(
    "SF806",
    "error",
    "a step gives another result when it is computed again",
    why="On the same machine with the same versions a step is exactly repeatable. The event was "
    "edited, or the data, the code, the libraries or the hardware differ.",
    fix="Compare the versions in the plan and in the environment, and test the memory.",
)

UP_TO_ROUNDING = rule(
    "SF871",
    "info",
    "a step compared up to rounding",
    why="The step was trained by several processes, whose sums are rounded in another order than "
    "those of one. Rows and tokens are compared exactly, losses to 1e-5.",
    fix="Nothing to do.",
)
NOT_COMPARABLE = rule(
    "SF872",
    "info",
    "a step that cannot be computed again by one process",
    why="Each process draws its own dropout, which one process cannot repeat.",
    fix="Nothing to do: the rows and tokens of the step were compared.",
)
ROUNDING = 1e-5
"""Relative difference of a loss that the order of sums may make."""


def verify_step(
    run: Run, step: int, objects: PythonObjects = NO_OBJECTS, progress: Progress = silent
) -> list[Finding]:
    """Recompute the steps from the checkpoint before `step` up to it, and compare their events."""
    stored = {event["step"]: event for event in run.history if event["event"] == "step"}
    if step not in stored:
        last = max(stored, default=0)
        raise UsageError(f"{run.path} has the steps 1 to {last}, not {step}.", "Choose one.")
    replay = open_replay(run, step, objects, progress)
    before, exact = int(run.plan["num_processes"]), int(run.plan["num_processes"]) == 1
    drops = not exact and has_dropout(replay.job.pipeline.module)
    where = str(run.events_path)
    for event in replay.train_to(step):
        differs = _differences(stored[event["step"]], event, exact, drops)
        if differs:
            message = f"Step {event['step']}: {'; '.join(differs)}."
            return [OTHER_STEP.finding(message, file=where)]
    return [] if exact else [_not_to_the_bit(step, before, drops, where)]


def _not_to_the_bit(step: int, processes: int, drops: bool, where: str) -> Finding:
    """What was compared of a step that several processes have trained."""
    if drops:
        message = (
            f"Step {step} was trained by {processes} processes with dropout: its loss differs."
        )
        return NOT_COMPARABLE.finding(message, file=where)
    message = f"Step {step} was trained by {processes} processes and computed again by one."
    return UP_TO_ROUNDING.finding(message, file=where)


def has_dropout(module: nn.Module) -> bool:
    """Whether the model drops values at random when it is trained."""
    from torch.nn.modules.dropout import _DropoutNd

    if any(isinstance(part, _DropoutNd) and part.p > 0 for part in module.modules()):
        return True
    parts: Iterator[Any] = (getattr(part, "config", None) for part in module.modules())
    configs = {id(config): config for config in parts if hasattr(config, "to_dict")}
    return any(_drops(config.to_dict()) for config in configs.values())


def _drops(settings: Any) -> bool:
    """Whether a config, or one inside it, names a rate of dropout above 0."""
    if not isinstance(settings, dict):
        return False
    rates = (value for name, value in settings.items() if "drop" in str(name))
    named = any(isinstance(rate, float) and rate > 0 for rate in rates)
    return named or any(_drops(value) for value in settings.values())


def _differences(
    stored: dict[str, Any], again: dict[str, Any], exact: bool, drops: bool
) -> list[str]:
    again = without_nan(again)
    names = [name for name in {**stored, **again} if name != "seconds"]
    return [
        f"{name} is {stored.get(name)!r} in the events and {again.get(name)!r} computed again"
        for name in names
        if not _agree(name, stored.get(name), again.get(name), exact, drops)
    ]


def _agree(name: str, one: Any, two: Any, exact: bool, drops: bool) -> bool:
    if exact or "loss" not in name or not (isinstance(one, float) and isinstance(two, float)):
        return bool(one == two)
    return drops or math.isclose(one, two, rel_tol=ROUNDING)
