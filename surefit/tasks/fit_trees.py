"""Gradient-boosted trees of scikit-learn, fitted in a process of their own.

    python -P fit_trees.py

It reads from stdin: a line of JSON with the settings, the inputs (N, C), the targets, a weight per
row, and then inputs to predict for. For each of the latter it writes the predictions to stdout. An
array is a line of JSON with its type and shape, and its bytes. The process imports NumPy and
scikit-learn alone, so that it starts quickly, and its memory has a limit of its own.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
FEWEST_TO_STOP = 10
"""Rows that the rarest class must have, so that a tenth of the rows can decide when to stop."""


def main(inputs: IO[bytes], outputs: IO[bytes]) -> None:
    """Fit, then predict for all that follows."""
    settings = json.loads(inputs.readline())
    limit_memory(settings["limit_bytes"])
    rows, targets, weights = (read_array(inputs) for _ in range(3))
    predict = fit(rows, targets, weights, settings)
    with suppress(EOFError):
        while True:
            write_array(outputs, predict(read_array(inputs)))


def write_array(stream: IO[bytes], array: Array) -> None:
    """Send an array."""
    head = json.dumps({"dtype": array.dtype.str, "shape": array.shape})
    stream.write(f"{head}\n".encode())
    stream.write(np.ascontiguousarray(array).data)
    stream.flush()


def read_array(stream: IO[bytes]) -> Array:
    """The next array that was sent; an EOFError where there is none, or only a part of it."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError("no further array")
    head = json.loads(line)
    dtype = np.dtype(head["dtype"])
    size = dtype.itemsize * math.prod(head["shape"])
    found = stream.read(size)
    if len(found) < size:
        raise EOFError("an array was cut off")
    return np.frombuffer(found, dtype).reshape(head["shape"])


def fit(
    rows: Array, targets: Array, weights: Array, settings: Mapping[str, Any]
) -> Callable[[Array], Array]:
    """One model, or one per column of the targets; what predicts for further rows."""
    if targets.ndim == 1:
        model = fit_one(rows, targets, weights, settings)
        return lambda more: np.asarray(model.predict(more), np.float64)
    models = [fit_one(rows, column, weights, settings) for column in targets.T]
    return lambda more: np.stack([m.predict(more) for m in models], 1).astype(np.float64)


def fit_one(rows: Array, targets: Array, weights: Array, settings: Mapping[str, Any]) -> Any:
    """Trees for one target; they stop where a tenth of the rows no longer improves."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    options = {
        "max_iter": settings["iterations"],
        "categorical_features": settings["categories"] or None,
        "random_state": settings["seed"],
        "early_stopping": True,
    }
    if settings["classes"]:
        _, counts = np.unique(targets, return_counts=True)
        if len(counts) == 1:
            return Constant(targets[0])
        options["early_stopping"] = bool(counts.min() >= FEWEST_TO_STOP)
        return HistGradientBoostingClassifier(**options).fit(rows, targets, sample_weight=weights)
    return HistGradientBoostingRegressor(**options).fit(rows, targets, sample_weight=weights)


class Constant:
    """Predicts the only class there is."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def predict(self, rows: Array) -> Array:
        """The class, for each row."""
        return np.full(len(rows), self.value)


def limit_memory(limit_bytes: int) -> None:
    """Let the system refuse this process more private memory than that; and leave no core file."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


if __name__ == "__main__":
    with open(1, "wb", closefd=False) as answer:  # the process that started this one reads it
        main(sys.stdin.buffer, answer)
