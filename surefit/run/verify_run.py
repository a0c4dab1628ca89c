"""Checks every file of a run's folder: config, plan, events, checkpoints, model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from surefit.core import digests
from surefit.errors import UsageError, to_resume
from surefit.findings import Finding, rule
from surefit.run.choose_checkpoint import checkpoint_damage, list_checkpoints
from surefit.run.exported_model import ExportedModel
from surefit.run.run_folder import Run

DAMAGED_FILE = rule(
    "SF802",
    "error",
    "a file of the run is damaged",
    why="The file is missing, or is not what surefit wrote: its size or digest differs, or steps "
    "are missing in the events.",
    fix="Restore the file from a copy.",
)
EDITED_CONFIG = rule(
    "SF804",
    "error",
    "config.yaml or plan.json was edited",
    why="These files are the record of what was trained. An edit makes the record wrong.",
    fix="Put the old content back. To change a setting, resume with the option.",
)


def verify_files(run: Run) -> list[Finding]:
    """Return what is wrong with the files of a run or an exported model; nothing is changed."""
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
    for damage in digests.find_damage(run.path):
        damaged = DAMAGED_FILE if damage.path.name == digests.FILE else EDITED_CONFIG
        yield damaged.finding(f"{damage}.", file=str(damage.path))


def _check_events(run: Run) -> Iterator[Finding]:
    where = str(run.events_path)
    try:
        steps = [event["step"] for event in run.history if event["event"] == "step"]
    except UsageError as error:
        yield DAMAGED_FILE.finding(error.message, file=where)
        return
    wrong = next((n for n, step in enumerate(steps, 1) if step != n), None)
    if wrong is not None:
        message = f"Step {steps[wrong - 1]} is where step {wrong} is expected."
        yield DAMAGED_FILE.finding(message, file=where)
    elif len(steps) < run.saved_step:
        message = f"The events end at step {len(steps)}; a checkpoint has step {run.saved_step}."
        yield DAMAGED_FILE.finding(message, file=where)


def _check_checkpoints(run: Run) -> Iterator[Finding]:
    for path in list_checkpoints(run.checkpoints):
        for damage in checkpoint_damage(path):
            yield _damaged(damage, f"Resuming passes it over: {to_resume(run.path)}")


def _check_model(run: Run, again: str) -> Iterator[Finding]:
    for damage in digests.find_damage(run.model_path) if run.has_model else ():
        yield _damaged(damage, again)


def _damaged(damage: digests.Damage, fix: str) -> Finding:
    return DAMAGED_FILE.finding(f"{damage}.", fix=fix, file=str(Path(damage.path)))
