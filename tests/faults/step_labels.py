"""Faults of labels per time step; and such labels that are only unusual."""

from __future__ import annotations

from typing import Any

import numpy as np
from steps_of_classes import step_arrays, step_rows

from faults.case import Case

ROWS: list[dict[str, Any]] = [
    {name: values.tolist() for name, values in row.items()} for row in step_rows(30)
]
ARRAYS = step_arrays(30, 12)
LABELS = ARRAYS["labels"]
NET = """
import torch
from torch import nn


def make(num_classes):
    return {net}
"""
BY_STEP = NET.format(net="nn.Linear(4, num_classes)")
WHOLE = NET.format(net="nn.Sequential(nn.Flatten(), nn.Linear(48, 144), nn.Unflatten(1, (12, 12)))")
ALL = "--set eval_share=0"


def odd(place: int, labels: Any) -> dict[str, Any]:
    """The rows, one of them with other labels."""
    changed = {**ROWS[place], "labels": labels(ROWS[place]["labels"])}
    return {"a.jsonl": [changed if n == place else row for n, row in enumerate(ROWS)]}


def arrays(labels: Any) -> dict[str, Any]:
    return {"a.npz": {**ARRAYS, "labels": labels}}


CASES = [
    Case(
        "SF201 a label too many for its steps",
        odd(4, lambda labels: [*labels, 0]),
        module=BY_STEP,
        row=4,
        column="labels",
        options=ALL,
    ),
    Case("SF205 no step has a label", arrays(np.full_like(LABELS, -100)), module=BY_STEP),
    Case(
        "SF205 several classes of one step",
        arrays(np.eye(3, dtype=int)[LABELS] | np.eye(3, dtype=int)[0]),
        module=BY_STEP,
    ),
    Case(
        "SF303 fewer outputs than classes of steps",
        arrays(LABELS),
        module=NET.format(net="nn.Linear(4, 2)"),
    ),
    Case(
        "SF305 one output per row for labels of steps",
        arrays(LABELS),
        module=NET.format(net="nn.Sequential(nn.Flatten(), nn.Linear(48, num_classes))"),
    ),
    Case("SF305 outputs of steps for labels of rows", arrays(LABELS[:, 0]), module=BY_STEP),
    Case(
        "SF305 a module that downsamples the steps",
        arrays(LABELS),
        module=NET.format(net="nn.Conv1d(4, num_classes, 3, stride=2, padding=1)"),
    ),
    Case("SF305 steps and classes look alike", arrays(LABELS), module=WHOLE),
    Case(
        "SF235 unlabelled steps as -1",
        arrays(np.where(np.arange(12) < 2, -1, LABELS)),
        module=BY_STEP,
    ),
]
HEALTHY = [
    Case("classes of steps", ROWS, module=BY_STEP, also=("one class per ",)),
    Case(
        "classes of steps for a network that reads channels first",
        arrays(LABELS),
        module=NET.format(net="nn.Conv1d(4, num_classes, 3, padding=1)"),
        also=("one class per ", "The module "),
    ),
    Case(
        "steps without a label",
        arrays(np.where(np.arange(12) % 5 == 4, -100, LABELS)),
        module=BY_STEP,
    ),
    Case("speech and silence", arrays((LABELS > 0).astype(int)), module=BY_STEP),
    Case(
        "one-hot classes of rows as long as the series",
        arrays(np.eye(12, dtype=int)[LABELS[:, 0]]),
        model="tiny:bert",
        also=("one class per ",),
    ),
]
