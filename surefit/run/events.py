"""events.jsonl: one line per step and per evaluation, cut back to the checkpoint on resume."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from surefit import atomic

Event = Mapping[str, Any]
Observer = Callable[[Event], None]


def without_nan(value: Any) -> Any:
    """The value with every NaN and infinity replaced by None, as JSON wants it.

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
    """An observer that appends each event to the file, one whole line at a time."""
    with path.open("a", encoding="utf-8", buffering=1) as file:

        def write(event: Event) -> None:
            line = json.dumps(without_nan(event), ensure_ascii=False, allow_nan=False)
            file.write(line + "\n")

        yield write


def read_events(path: Path) -> list[dict[str, Any]]:
    """All whole lines of the file; a last line cut off by a crash is left out."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    lines = text[: text.rfind("\n") + 1].splitlines()
    if lines and not _is_json(lines[-1]):
        lines.pop()
    return [json.loads(line) for line in lines]


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    return True


def cut_events(path: Path, step: int) -> list[dict[str, Any]]:
    """Drop every event after `step` from the file; return those that are left."""
    kept = [event for event in read_events(path) if event["step"] <= step]
    lines = [json.dumps(event, ensure_ascii=False) + "\n" for event in kept]
    atomic.write_text(path, "".join(lines))
    return kept


def summarise_epochs(events: Sequence[Event]) -> list[dict[str, Any]]:
    """One dict per epoch: mean loss of its steps, loss of its last evaluation, seconds.

    >>> step = {"event": "step", "epoch": 1, "seconds": 2.0}
    >>> summarise_epochs([{**step, "loss": 3.0}, {**step, "loss": 1.0}])
    [{'epoch': 1, 'train_loss': 2.0, 'eval_loss': None, 'seconds': 4.0}]
    """
    epochs: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["event"] == "step":
            empty: dict[str, Any] = {"losses": [], "eval_loss": None, "seconds": 0.0}
            epoch = epochs.setdefault(event["epoch"], empty)
            epoch["losses"].append(event["loss"])
            epoch["seconds"] += event["seconds"]
        elif event["event"] == "eval" and event["epoch"] in epochs:
            epochs[event["epoch"]]["eval_loss"] = event["metrics"]["loss"]
    return [
        {
            "epoch": number,
            "train_loss": sum(epoch["losses"]) / len(epoch["losses"]),
            "eval_loss": epoch["eval_loss"],
            "seconds": epoch["seconds"],
        }
        for number, epoch in epochs.items()
    ]
