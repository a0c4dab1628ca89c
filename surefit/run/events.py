"""events.jsonl: one line per step and per evaluation, cut back to the checkpoint on resume."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefit.core import files
from surefit.core.files import open_own
from surefit.core.foreign import parse_json
from surefit.errors import RunFailedError, UsageError
from surefit.targets.task_spec import is_better

Event = Mapping[str, Any]
Observer = Callable[[Event], None]
SURROGATES = "backslashreplace"
"""A lone surrogate cannot be UTF-8; as \\udXXX it is what JSON writes for it."""


def without_nan(value: Any) -> Any:
    """Return the value with every NaN and infinity replaced by None, as JSON wants it.

    >>> without_nan({"loss": float("nan"), "f1": [0.5]})
    {'loss': None, 'f1': [0.5]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return value


@contextmanager
def event_writer(path: Path) -> Iterator[Observer]:
    """Yield an observer that appends each event to the file, one whole line at a time.

    A file that was deleted or replaced meanwhile is noticed at the next event: to write on would
    be to train for nobody.
    """
    opened = open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with open(opened, "a", encoding="utf-8", buffering=1, newline="\n", errors=SURROGATES) as file:
        own = os.fstat(file.fileno())

        def write(event: Event) -> None:
            line = json.dumps(without_nan(event), ensure_ascii=False, allow_nan=False)
            file.write(line + "\n")
            if not _is_same_file(path, own):
                raise RunFailedError(
                    f"{path} was deleted or replaced while the run was writing it, so what is "
                    f"trained after step {event['step'] - 1} would be lost.",
                    "Start the run again, and leave its folder where it is while it trains.",
                )

        yield write


def _is_same_file(path: Path, opened: os.stat_result) -> bool:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    return (found.st_ino, found.st_dev) == (opened.st_ino, opened.st_dev)


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return all whole lines of the file; a last line cut off by a crash is left out."""
    return [event for _, event in _read_lines(path)]


def cut_events(path: Path, step: int) -> None:
    """Drop every event after `step`, and a last line that was cut off, from the file."""
    kept = [line for line, event in _read_lines(path) if event["step"] <= step]
    files.write_bytes(path, b"".join(kept))


def _read_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each whole line with its event. A line ends with \\n and with nothing else.

    Text may hold other characters that Unicode counts as line breaks, such as U+2028.
    """
    if not path.is_file():
        return
    lines = path.read_bytes().split(b"\n")
    last = len(lines) - 1 if lines[-1] else len(lines) - 2
    for number, line in enumerate(lines[: last + 1]):
        event = _parse(line)
        if event is not None and (number < len(lines) - 1):
            yield line + b"\n", event
        elif number < last:
            raise UsageError(
                f"{path}, line {number + 1} is damaged: expected an event, found "
                f"{line[:60].decode('utf-8', 'replace')!r}.",
                "Restore the file from a copy, or delete that line: the history then lacks it.",
            )


class EventTail:
    """Reads what has been appended to a file of events, and never twice what it has read.

    Of many steps, the means of neighbours are kept: at most `2 * most_steps` of them.
    """

    def __init__(self, path: Path, most_steps: int = 1000) -> None:
        self._path, self._most = path, most_steps
        self._begin((0, 0))

    def _begin(self, file: tuple[int, int]) -> None:
        self._file, self._offset, self._stride = file, 0, 1
        self._steps, self._others = list[dict[str, Any]](), list[dict[str, Any]]()
        self._waiting = list[dict[str, Any]]()
        self.num_steps, self.last_step = 0, dict[str, Any]()

    def read(self) -> bool:
        """Read what is new; return whether there was anything. A file that was cut is read anew."""
        try:
            descriptor = open_own(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        with open(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if (about.st_dev, about.st_ino) != self._file or about.st_size < self._offset:
                self._begin((about.st_dev, about.st_ino))
            file.seek(self._offset)
            lines = file.read().split(b"\n")[
                :-1
            ]  # behind the last newline, a line is being written
        for line in lines:
            event = _parse(line)
            if event is None:
                raise UsageError(
                    f"{self._path} is damaged at byte {self._offset}: expected an event, found "
                    f"{line[:60].decode('utf-8', 'replace')!r}.",
                    "Restore the file from a copy, or delete that line.",
                )
            self._offset += len(line) + 1
            self._add(event)
        return bool(lines)

    def _add(self, event: dict[str, Any]) -> None:
        if event["event"] != "step":
            self._others.append(event)
            return
        self.num_steps, self.last_step = self.num_steps + 1, event
        self._waiting.append(event)
        if len(self._waiting) == self._stride:
            self._steps.append(mean_step(self._waiting))
            self._waiting = []
        if len(self._steps) >= 2 * self._most:
            pairs = range(0, len(self._steps), 2)
            self._steps = [mean_step(self._steps[place : place + 2]) for place in pairs]
            self._stride *= 2

    @property
    def history(self) -> list[dict[str, Any]]:
        """Return the events so far, in their order."""
        steps = [*self._steps, *([mean_step(self._waiting)] if self._waiting else [])]
        return sorted([*steps, *self._others], key=lambda event: int(event["step"]))


def mean_step(events: Sequence[Event]) -> dict[str, Any]:
    """Return one event for consecutive steps: means of their figures, the sum of their seconds.

    >>> mean_step([{"step": n, "loss": 2.0 - n, "seconds": 1.0} for n in (0, 1)])
    {'step': 1, 'loss': 1.5, 'seconds': 2.0}
    """
    if len(events) == 1:
        return dict(events[0])
    merged = dict(events[-1])
    for name, value in merged.items():
        known = [each for event in events if isinstance(each := event.get(name), float)]
        if known and isinstance(value, float | None):
            total = sum(known)
            merged[name] = total if name == "seconds" else total / len(known)
    return merged


def last_events(path: Path, num_bytes: int = 1 << 16) -> list[dict[str, Any]]:
    """Return the events in the last bytes of the file; lines that are none are left out."""
    try:
        descriptor = open_own(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    with open(descriptor, "rb") as file:
        start = max(0, os.fstat(descriptor).st_size - num_bytes)
        file.seek(start)
        lines = file.read().split(b"\n")[1 if start else 0 : -1]
    return [event for line in lines if (event := _parse(line)) is not None]


@dataclass(frozen=True)
class Stored:
    """What is relied on in a stored event; it may have more."""

    event: str
    step: int
    epoch: int = 0
    seconds: float = 0.0
    loss: float | None = None
    metrics: dict[str, Any] | None = None


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line; None for what is no event."""
    with suppress(UsageError):
        parse_json(line, Stored, "events.jsonl")
        return parse_json(line, dict[str, Any], "events.jsonl")
    return None


def summarise_epochs(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return one dict per epoch: mean loss of its steps, loss of its last evaluation, seconds.

    >>> step = {"event": "step", "epoch": 1, "seconds": 2.0}
    >>> summarise_epochs([{**step, "loss": 3.0}, {**step, "loss": 1.0}])
    [{'epoch': 1, 'train_loss': 2.0, 'eval_loss': None, 'seconds': 4.0}]
    """
    epochs: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["event"] == "step":
            empty: dict[str, Any] = {"losses": [], "eval_loss": None, "seconds": 0.0}
            epoch = epochs.setdefault(event["epoch"], empty)
            if event["loss"] is not None:  # a step that was skipped
                epoch["losses"].append(event["loss"])
            epoch["seconds"] += event["seconds"]
        elif event["event"] == "eval" and event["epoch"] in epochs:
            epochs[event["epoch"]]["eval_loss"] = event["metrics"]["loss"]
    return [
        {
            "epoch": number,
            "train_loss": sum(epoch["losses"]) / len(epoch["losses"]) if epoch["losses"] else None,
            "eval_loss": epoch["eval_loss"],
            "seconds": epoch["seconds"],
        }
        for number, epoch in epochs.items()
    ]


def metrics_of(history: Sequence[Event], best_step: int | None) -> dict[str, Any]:
    """Return the metrics of the evaluation whose weights `model/` has; empty without one."""
    evals = [event for event in history if event["event"] == "eval" and event["step"]]
    chosen = next((e for e in evals if e["step"] == best_step), evals[-1] if evals else None)
    return dict(chosen["metrics"]) if chosen else {}


@dataclass(frozen=True)
class Outcome:
    """A metric of the validation set: before training if it was measured, after, and the best
    baseline's."""

    metric: str
    before: float | None
    after: float
    baseline: float | None
    baseline_name: str = ""


def best_baseline(
    metric: str, baselines: Mapping[str, Mapping[str, Any]]
) -> tuple[str, float] | None:
    """Return the name and the figure of the best baseline; None where none has the metric.

    >>> best_baseline("accuracy", {"majority class": {"accuracy": 0.87}})
    ('majority class', 0.87)
    """
    best: tuple[str, float] | None = None
    for name, figures in baselines.items():
        value = figures.get(metric)
        if isinstance(value, int | float) and (best is None or is_better(metric, value, best[1])):
            best = name, value
    return best


def outcomes(
    history: Sequence[Event], metrics: Mapping[str, Any], baselines: Mapping[str, Mapping[str, Any]]
) -> list[Outcome]:
    """Return each metric that is a number, from before training to after it."""
    first = next((e for e in history if e["event"] == "eval" and e["step"] == 0), None)
    found = []
    for name, value in metrics.items():
        if isinstance(value, int | float):
            before = first["metrics"].get(name) if first is not None else None
            base = best_baseline(name, baselines) or ("", None)
            found.append(Outcome(name, before, value, base[1], base[0]))
    return found
