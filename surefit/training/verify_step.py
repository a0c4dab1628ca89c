"""Computes one step of a run again and compares it with its event to the bit."""

from __future__ import annotations

from typing import Any

from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.progress import Progress, silent
from surefit.request import PythonObjects
from surefit.run.events import without_nan
from surefit.run.run_folder import Run
from surefit.training.replay import NO_OBJECTS, open_replay

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
    events = open_replay(run, step, objects, progress).train_to(step)
    found = []
    for event in events:
        differs = _differences(stored[event["step"]], event)
        if differs:
            shown = "; ".join(differs)
            message = f"Step {event['step']}: {shown}."
            found.append(OTHER_STEP.finding(message, file=str(run.events_path)))
    return found[:1]


def _differences(stored: dict[str, Any], again: dict[str, Any]) -> list[str]:
    again = without_nan(again)
    names = [name for name in {**stored, **again} if name != "seconds"]
    return [
        f"{name} is {stored.get(name)!r} in the events and {again.get(name)!r} computed again"
        for name in names
        if stored.get(name) != again.get(name)
    ]
