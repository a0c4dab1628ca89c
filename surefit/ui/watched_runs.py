"""The runs of a folder as the page shows them: found, summarised, and read on while they train."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

from surefit.core.foreign import content_of
from surefit.core.locks import FILE, STOP, is_asked_to_stop, is_held
from surefit.errors import SurefitError, UsageError
from surefit.report.page import Section, Subject, sections_of, subject_of, title_of
from surefit.run.events import EventTail, last_events
from surefit.run.run_folder import Run, is_run, open_run

DEPTH = 1
"""Folders of runs have runs, or folds, in them."""
MOST_RUNS = 2000
RECENT = 50
"""Steps whose mean time predicts the time left."""
CHANGING = ("plan.json", "events.jsonl", "examples.json", "checkpoints", "model", FILE, STOP)
"""What changes in the folder of a run while it trains."""


@dataclass(frozen=True)
class Summary:
    """A line of the list of runs."""

    name: str
    state: str
    task: str = ""
    model: str = ""
    step: int = 0
    steps: int = 0
    loss: float | None = None
    metric: str = ""
    value: float | None = None
    begun: float = 0.0
    seconds_left: float | None = None
    fault: str = ""


class WatchedRun:
    """A run that is looked at, perhaps while it trains: what has not changed is not read again."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self._summary: tuple[Any, Summary] | None = None
        self._sections: tuple[Any, str, list[Section]] | None = None
        self._tail = EventTail(path / "events.jsonl")

    def signature(self) -> tuple[Any, ...]:
        """Return what is another where something has changed."""
        found: list[Any] = [is_held(self.path / FILE)]
        for name in CHANGING:
            try:
                about = os.lstat(self.path / name)
                found.append((about.st_ino, about.st_size, about.st_mtime_ns))
            except OSError:
                found.append(None)
        return tuple(found)

    def open(self) -> Run:
        """Open the run; links and special files in it are refused each time."""
        return open_run(self.path)

    def summary(self) -> Summary:
        """Return the run's line in the list."""
        now = self.signature()
        if self._summary is None or self._summary[0] != now:
            try:
                with content_of(self.path):
                    made = self._summarise(self.open())
            except SurefitError as error:
                made = Summary(self.name, "damaged", fault=error.message)
            self._summary = now, made
        return self._summary[1]

    def _summarise(self, run: Run) -> Summary:
        plan, events = run.plan, last_events(run.events_path)
        steps = [event for event in events if event["event"] == "step"]
        figures = next((e["metrics"] for e in reversed(events) if e["event"] == "eval"), None) or {}
        numbers = {n: v for n, v in figures.items() if isinstance(v, int | float)}
        metric = next((name for name in numbers if name != "loss"), next(iter(numbers), ""))
        last: dict[str, Any] = steps[-1] if steps else {"step": 0, "loss": None}
        state = state_of(run)
        return Summary(
            self.name,
            state,
            str(plan["task"]),
            str(plan["model"].get("name", "")),
            int(last["step"]),
            int(plan["steps"]),
            last["loss"],
            metric,
            numbers.get(metric),
            os.lstat(run.path / "plan.json").st_mtime,
            seconds_left(steps, plan["steps"]) if state in RUNNING else None,
        )

    def subject(self) -> Subject:
        """Return what the run's page is about, with the events so far."""
        run = self.open()
        self._tail.read()
        with content_of(self.path):
            return subject_of(run, self._tail)

    def drawn(self) -> tuple[str, list[Section]]:
        """Return the title and the sections of the run's page."""
        now = self.signature()
        if self._sections is None or self._sections[0] != now:
            about = self.subject()
            with content_of(self.path):
                self._sections = now, title_of(about), sections_of(about)
        return self._sections[1:]


RUNNING = ("training", "stopping")


def state_of(run: Run) -> str:
    """Return whether a run is training, stopping, finished, failed or stopped."""
    if is_held(run.path / FILE):
        return "stopping" if is_asked_to_stop(run.path) else "training"
    if run.finished:
        return "finished"
    return "failed" if (run.path / "failures").is_dir() else "stopped"


def seconds_left(steps: Sequence[Mapping[str, Any]], total: int) -> float | None:
    """Return the time that the steps left will take, by the recent ones; without evaluations."""
    recent = [float(event["seconds"]) for event in steps[-RECENT:]]
    if not recent:
        return None
    return sum(recent) / len(recent) * max(0, total - int(steps[-1]["step"]))


class Runs:
    """All runs in a folder, by their path in it. No link is followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.lock = RLock()
        """Pages are made in several threads."""
        self._known: dict[str, WatchedRun] = {}

    def find(self) -> dict[str, WatchedRun]:
        """Return the runs that are there now, by name."""
        found: dict[str, WatchedRun] = {}
        for path in _run_folders(self.folder, DEPTH):
            name = path.relative_to(self.folder).as_posix()
            name = path.name if name == "." else name
            known = self._known.get(name)
            found[name] = known if known is not None else WatchedRun(name, path)
            if len(found) == MOST_RUNS:
                break
        self._known = found
        return found

    def get(self, name: str) -> WatchedRun:
        """Return a run by its name; the name is looked up, and no part of a path."""
        found = self._known.get(name)
        if found is None or not is_run(found.path):
            found = self.find().get(name)
        if found is None:
            raise UsageError(
                f"There is no run {name!r} in {self.folder}.", "Choose one of the list."
            )
        return found

    def summaries(self) -> list[Summary]:
        """Return a line for each run, the newest first."""
        with self.lock:
            made = [run.summary() for run in self.find().values()]
        return sorted(made, key=lambda each: (each.state not in RUNNING, -each.begun))


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    if is_run(folder):
        yield folder
    if is_run(folder) or depth < 0:
        return
    try:
        inside = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in inside:
        # Names that are no text cannot stand in an address.
        is_shown = entry.name.isprintable() and not entry.name.startswith(".")
        if is_shown and entry.is_dir(follow_symlinks=False):
            yield from _run_folders(Path(entry.path), depth - 1)
