"""Series with a class per time step: the class is the channel that is raised there."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

NAMES = ("rest", "walk", "run")
WIDTH = 4


def step_rows(count: int, seed: int = 0, length: int | None = None) -> list[dict[str, Any]]:
    """Series of 8 to 20 steps, or of one length, and the number of each step's class."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        size = length or int(random.integers(8, 21))
        labels = np.repeat(random.integers(0, len(NAMES), size), 4)[:size]
        steps = random.normal(size=(size, WIDTH)) * 0.3
        steps[np.arange(size), labels] += 2
        rows.append({"features": steps.astype(np.float32), "labels": labels})
    return rows


def step_arrays(count: int, length: int, seed: int = 0) -> dict[str, Any]:
    """The same as arrays [rows, steps, width] and [rows, steps]."""
    rows = step_rows(count, seed, length)
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def conv(outputs: int = len(NAMES), **options: Any) -> nn.Module:
    """Reads (B, W, T), as most convolutional networks of series do, and returns (B, C, T)."""
    return nn.Conv1d(WIDTH, outputs, 3, padding=1, **options)
