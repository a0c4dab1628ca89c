"""How well one column of a table predicts the target on its own: a threshold, a line, a lookup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.encode.encoder import Encoder
from surefit.encode.store import Store
from surefit.tasks.numeric_columns import (
    feature_rows,
    is_table,
    part_places,
    spread_rows,
)

Array = npt.NDArray[Any]

MAX_ROWS = 20_000
"""Training rows that a rule is fitted on, spread evenly."""
NUM_THRESHOLDS = 15


@dataclass(frozen=True)
class ByColumn:
    """The column that fits the training rows best, and what it predicts for validation rows."""

    column: str
    predictions: Array


def predict_by_column(
    train: Store | None,
    validation: Store,
    encoder: Encoder,
    num_classes: int | None,
    target: int = 0,
) -> ByColumn | None:
    """The best rule on one column; None where the rows are not those of a table.

    `num_classes` is None for numbers, of which `target` is the one to predict. The rule is
    chosen by its errors on training rows.
    """
    if train is None or not len(train) or not is_table(encoder, train):
        return None
    places, parts = spread_rows(train, MAX_ROWS), encoder.fitted["columns"]
    rows, judged = feature_rows(train, places), feature_rows(validation, slice(None))
    labels = np.asarray(train.values("labels")).reshape(len(train), -1)[places, target]
    best: tuple[float, str, Array] | None = None
    for column, inputs, tried in _columns(parts, rows, judged):
        for error, predict in _fit(inputs, labels, num_classes):
            if best is None or error < best[0]:
                best = error, column, predict(tried)
    return None if best is None else ByColumn(best[1], best[2])


def _columns(
    parts: list[Mapping[str, Any]], rows: Array, judged: Array
) -> Iterator[tuple[str, Array, Array]]:
    """Each part of the vector as one value per row: the number, or the number of the category."""
    for part, start, end in part_places(parts):
        if part["kind"] == "number":
            yield part["column"], rows[:, start], judged[:, start]
        else:
            groups = (each[:, start:end].argmax(1) for each in (rows, judged))
            yield (part["column"], *groups)


def _fit(inputs: Array, labels: Array, num_classes: int | None) -> Iterator[tuple[float, Any]]:
    """Rules for one column, each with its error on the training rows."""
    if inputs.dtype.kind == "i":
        size = int(inputs.max()) + 2
        yield _by_group(inputs, labels, num_classes, lambda tried: np.minimum(tried, size - 1))
        return
    levels = np.linspace(0, 1, NUM_THRESHOLDS + 2)[1:-1]
    for threshold in np.unique(np.quantile(inputs, levels)):
        above = _threshold(float(threshold))
        yield _by_group(above(inputs), labels, num_classes, above)
    if num_classes is None:
        yield _line(inputs, labels)


def _threshold(value: float) -> Any:
    return lambda tried: (tried > value).astype(np.int64)


def _by_group(
    groups: Array, labels: Array, num_classes: int | None, group: Any
) -> tuple[float, Any]:
    """The majority class, or the mean, of each group; the overall one for a group without rows."""
    size = int(groups.max()) + 2
    if num_classes is not None:
        cells = np.bincount(groups * num_classes + labels, minlength=size * num_classes)
        counts = cells.reshape(size, num_classes)
        counts[counts.sum(1) == 0] = np.bincount(labels, minlength=num_classes)
        chosen: Array = counts.argmax(1)
        return float((chosen[groups] != labels).mean()), lambda tried: chosen[group(tried)]
    counted = np.bincount(groups, minlength=size)
    sums = np.bincount(groups, labels, minlength=size)
    chosen = np.where(counted > 0, sums / np.maximum(counted, 1), labels.mean())
    return float(np.square(chosen[groups] - labels).mean()), lambda tried: chosen[group(tried)]


def _line(inputs: Array, labels: Array) -> tuple[float, Any]:
    inputs = inputs.astype(np.float64)
    spread = float(inputs.var())
    slope = float(np.mean((inputs - inputs.mean()) * (labels - labels.mean()))) / max(spread, 1e-12)
    offset = float(labels.mean() - slope * inputs.mean())
    error = float(np.square(slope * inputs + offset - labels).mean())
    return error, lambda tried: slope * tried.astype(np.float64) + offset
