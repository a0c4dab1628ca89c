"""mae, rmse and r2 of predicted numbers: the mean over the targets, and each target's own beside.

With several targets, the mean is scikit-learn's `multioutput="uniform_average"`. All are sums over
rows, (K,) for K targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.core.float64 import to_float64
from surefit.encode.encoder import Encoder
from surefit.tasks.number_targets import name_targets
from surefit.tasks.task_spec import Batch, Metric, full_precision

if TYPE_CHECKING:
    import torch

PER_TARGET = "per_target"


def predicted_numbers(outputs: Any, num_targets: int) -> torch.Tensor:
    """The numbers of each row, (B, K), of logits (B, K) or, for one number, (B,)."""
    logits = full_precision(outputs.logits)
    return logits.reshape(len(logits), -1)[:, :num_targets]


def _sums(outputs: Any, batch: Batch, encoder: Encoder) -> dict[str, Any]:
    labels = batch["labels"].reshape(len(batch["labels"]), -1)
    return _error_sums(predicted_numbers(outputs, labels.shape[1]), labels, encoder)


def _error_sums(predicted: torch.Tensor, labels: torch.Tensor, encoder: Encoder) -> dict[str, Any]:
    labels = to_float64(labels)
    errors = to_float64(predicted) - labels
    scale = labels.new_tensor(encoder.fitted["scale"]).reshape(-1)
    return {
        "absolute": (errors.abs() * scale).sum(0),
        "squared": (errors.square() * scale.square()).sum(0),
        "errors": errors.square().sum(0),
        "labels": labels.sum(0),
        "squares": labels.square().sum(0),
        "count": len(labels),
    }


def _mae(sums: Mapping[str, Any]) -> list[float]:
    return [float(total / sums["count"]) for total in sums["absolute"]]


def _rmse(sums: Mapping[str, Any]) -> list[float]:
    return [float((total / sums["count"]) ** 0.5) for total in sums["squared"]]


def _r2(sums: Mapping[str, Any]) -> list[float]:
    parts = zip(*(sums[name] for name in ("errors", "labels", "squares")), strict=True)
    return [
        r2_of({"errors": errors, "labels": labels, "squares": squares, "count": sums["count"]})
        for errors, labels, squares in parts
    ]


Figures = Callable[[Mapping[str, Any]], list[float]]
OF_NUMBERS: dict[str, Figures] = {"mae": _mae, "rmse": _rmse, "r2": _r2}


def _metric(figures: Figures) -> Metric:
    def per_target(sums: Mapping[str, Any], encoder: Encoder) -> dict[str, Any]:
        each = figures(sums)
        return {PER_TARGET: name_targets(each, encoder)} if len(each) > 1 else {}

    return Metric(
        _sums, lambda sums: float(np.mean(figures(sums))), beside=per_target, uses_encoder=True
    )


NUMBER_METRICS = {name: _metric(figures) for name, figures in OF_NUMBERS.items()}


def number_figures(
    predicted: npt.NDArray[np.float64], labels: npt.NDArray[np.float64], encoder: Encoder
) -> dict[str, Any]:
    """Loss in units of the targets' spread, and the errors in the units of the data: (N, K)."""
    import torch

    sums = _error_sums(torch.from_numpy(predicted), torch.from_numpy(labels), encoder)
    found: dict[str, Any] = {"loss": float(sums["errors"].mean() / sums["count"])}
    for name, figures in OF_NUMBERS.items():
        each = figures(sums)
        found[name] = float(np.mean(each))
        if len(each) > 1:
            found[f"{name}_{PER_TARGET}"] = name_targets(each, encoder)
    return found


CONSTANT = 1e-12
"""Targets whose variance is a smaller share of their mean square differ by rounding alone."""


def r2_of(sums: Mapping[str, Any]) -> float:
    """1 minus the squared errors over the squared distances from the mean of these rows.

    As scikit-learn defines it: of equal targets, 1 if all are predicted exactly and 0 otherwise;
    unknown for a single row.
    """
    errors, squares = float(sums["errors"]), float(sums["squares"])
    spread = squares - float(sums["labels"]) ** 2 / max(float(sums["count"]), 1.0)
    if sums["count"] < 2:
        return math.nan
    if spread <= CONSTANT * squares:
        return float(errors == 0)
    return 1 - errors / spread
