"""Finds the data of a run that is no longer where it was; its content decides whether it is it."""

from __future__ import annotations

from pathlib import Path

from surefit.config import RunConfig
from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.run.run_folder import Run

DATA_MOVED = rule(
    "SF822",
    "info",
    "data found in another place",
    why="The data of the run is no longer where it was. A file of the same name is used if its "
    "rows are those that the run was begun with.",
    fix="Nothing to do.",
)


def find_moved(run: Run, config: RunConfig) -> tuple[RunConfig, list[Finding]]:
    """The config with the places at which the data is now, and a note for each that moved."""
    found: dict[str, tuple[str, ...]] = {}
    notes = []
    for key in ("data", "eval_data"):
        places = []
        for named in getattr(config, key):
            place = _find(run, Path(named))
            if place is not None:
                message = f"{named} is gone; {place} is read in its place."
                notes.append(DATA_MOVED.finding(message, file=str(place)))
            places.append(str(place or named))
        found[key] = tuple(places)
    return config.model_copy(update=found), notes


def _find(run: Run, path: Path) -> Path | None:
    """Where a path of the run's data is now; None if it is still there, or is a hub id."""
    if path.exists() or not path.is_absolute():
        return None
    folder = run.path.resolve()
    beside = (Path.cwd(), Path.cwd() / path.parent.name, folder.parent, folder.parent.parent)
    for place in (folder / path.name for folder in beside):
        if place.exists():
            return place.resolve()
    raise UsageError(
        f"The data of {run.path} is gone: there is no {path}.",
        f"Pass its new place: surefit train --resume {run.path} --data FILE. It is accepted if its "
        "rows are those that the run was begun with. To evaluate: surefit evaluate "
        f"{run.path} --data FILE.",
    )
