"""Checks every file of a run's folder: config, plan, events, checkpoints, model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from surefit import digests
from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.run.choose_checkpoint import checkpoint_damage, list_checkpoints
from surefit.run.exported_model import ExportedModel
from surefit.run.run_folder import Run

DAMAGED_FILE = rule(
    "SF802",
    "error",
    "a file of the run is damaged",
    why="The file is missing, or is not what surefit wrote: its size or digest differs.",
    fix="Restore the file from a copy.",
)
NO_DIGESTS = rule(
    "SF803",
    "info",
    "files without digests",
    why="Version 0.3.0 and earlier wrote no digests, so that damage cannot be seen.",
    fix="Nothing to do.",
)
EDITED_CONFIG = rule(
    "SF804",
    "error",
    "config.yaml or plan.json was edited",
    why="These files are the record of what was trained. An edit makes the record wrong.",
    fix="Put the old content back. To change a setting, resume with the option.",
)
DAMAGED_EVENTS = rule(
    "SF805",
    "error",
    "events.jsonl is damaged",
    why="Each step must be in the events once and in order, up to the latest checkpoint.",
    fix="Restore the file from a copy.",
)


def verify_files(run: Run) -> list[Finding]:
    """What is wrong with the files of a run or an exported model; nothing is changed."""
    if isinstance(run, ExportedModel):
        return [*_check_model(run, "Restore it from a copy, or export the run again.")]
    again = f"Restore it from a copy; or delete {run.model_path}, and resume the run to write it."
    return [
        *_check_beginning(run),
        *_check_events(run),
        *_check_checkpoints(run),
        *_check_model(run, again),
    ]


def _check_beginning(run: Run) -> Iterator[Finding]:
    if not digests.is_sealed(run.path):
        yield NO_DIGESTS.finding("config.yaml and plan.json have no digests.", file=str(run.path))
        return
    for damage in digests.find_damage(run.path):
        yield EDITED_CONFIG.finding(f"{damage}.", file=str(damage.path))


def _check_events(run: Run) -> Iterator[Finding]:
    where = str(run.events_path)
    try:
        steps = [event["step"] for event in run.history if event["event"] == "step"]
    except UsageError as error:
        yield DAMAGED_EVENTS.finding(error.message, file=where)
        return
    wrong = next((n for n, step in enumerate(steps, 1) if step != n), None)
    if wrong is not None:
        message = f"Step {steps[wrong - 1]} is where step {wrong} is expected."
        yield DAMAGED_EVENTS.finding(message, file=where)
    elif len(steps) < run.saved_step:
        message = f"The events end at step {len(steps)}; a checkpoint has step {run.saved_step}."
        yield DAMAGED_EVENTS.finding(message, file=where)


def _check_checkpoints(run: Run) -> Iterator[Finding]:
    for path in list_checkpoints(run.checkpoints):
        found = checkpoint_damage(path)
        for damage in found:
            yield _damaged(damage, f"Resuming passes it over: surefit train --resume {run.path}")
        if not found and not digests.is_sealed(path):
            yield NO_DIGESTS.finding(f"{path.name} has no digests.", file=str(path))


def _check_model(run: Run, again: str) -> Iterator[Finding]:
    if not run.has_model:
        return
    if not digests.is_sealed(run.model_path):
        yield NO_DIGESTS.finding(
            f"{run.model_path.name}/ has no digests.", file=str(run.model_path)
        )
        return
    for damage in digests.find_damage(run.model_path):
        yield _damaged(damage, again)


def _damaged(damage: digests.Damage, fix: str) -> Finding:
    return DAMAGED_FILE.finding(f"{damage}.", fix=fix, file=str(Path(damage.path)))
