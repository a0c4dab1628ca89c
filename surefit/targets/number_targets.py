"""The numbers that regression learns, one or several per row: reading, scaling, mae, rmse and r2.

Several numbers are several columns (`columns.label: [casual, registered]`) or one column of lists.
Each is learned in units of its own spread. A metric is the mean over the targets, as
scikit-learn's `multioutput="uniform_average"`, with each target's own beside it; all are sums over
rows, (K,) for K targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import Field
from surefit.config import joint_parts
from surefit.core.float64 import to_float64
from surefit.data.data_rules import NOT_FINITE, WRONG_SHAPE
from surefit.data.written_values import read_number
from surefit.findings import Finding, rule
from surefit.inputs.encoded_row import DropReason, RowFaultError, drop_row
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedTarget, NumberScales, as_fitted
from surefit.targets.classes import class_list, output_names
from surefit.targets.task_spec import Batch, Metric, full_precision

if TYPE_CHECKING:
    import torch

UNSUITABLE_TARGET = rule(
    "SF230",
    "error",
    "target does not suit regression",
    why="Regression learns numbers, and the numbers must differ.",
    fix="Choose a column of numbers with columns.label, or a classification task.",
)

Numbers = npt.NDArray[np.float64]


def read_targets(value: Any) -> list[float] | None:
    """Return the targets of a row, one or several; None where one of them is missing.

    >>> read_targets(2), read_targets([2, 3.5]), read_targets("2"), read_targets([1, None])
    ([2.0], [2.0, 3.5], [2.0], None)
    """
    several = class_list(value)
    numbers = [_number(each) for each in (several if several is not None else [value])]
    if not numbers or any(number is None for number in numbers):
        return None
    return [number for number in numbers if number is not None]


def _number(value: Any) -> float | None:
    """Return a target as a number; None where it is missing.

    The text of a number counts as one: then the row that made its column text is at fault.
    """
    if isinstance(value, str):
        read = read_number(value)
        value = value if read is None else read
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not isinstance(value, bool | int | float):
        raise RowFaultError(
            UNSUITABLE_TARGET,
            f"the target {str(value)[:40]!r} is not a number",
            "label",
            fix="Correct the value, or choose a column of numbers with columns.label.",
        )
    if math.isinf(value):
        raise RowFaultError(NOT_FINITE, f"the target is {value}", "label")
    return float(value)


@dataclass
class TargetSpread:
    """Mean and spread of each target, of training rows that are seen one at a time."""

    column: str
    count: int = 0
    mean: Numbers = field(default_factory=lambda: np.zeros(1))
    squares: Numbers = field(default_factory=lambda: np.zeros(1))

    def add(self, row: Mapping[str, Any]) -> bool:
        """Take in a row; False where it has no target."""
        targets = read_targets(row["label"])
        if targets is None:
            return False
        if not self.count:
            self.mean, self.squares = np.zeros(len(targets)), np.zeros(len(targets))
        values = np.asarray(_of_size(targets, len(self.mean)))
        self.count += 1
        step = values - self.mean
        self.mean = self.mean + step / self.count
        self.squares = self.squares + step * (values - self.mean)
        return True

    def fitted(self) -> NumberScales:
        """Mean and scale of the targets, and the names of several."""
        column, size = self.column, len(self.mean)
        if not self.count:
            raise UNSUITABLE_TARGET.error(f"column {column!r} is blank everywhere.", column=column)
        names = joint_parts(column) or [str(place) for place in range(size)]
        scale = np.sqrt(self.squares / self.count)
        if not scale.all():
            at = int(np.flatnonzero(scale == 0)[0])
            shown = f"column {(names[at] if joint_parts(column) else column)!r}"
            shown += f", number {at} of each row," if size > 1 and not joint_parts(column) else ""
            what = f"is {self.mean[at]:g} in all {self.count} training rows"
            raise UNSUITABLE_TARGET.error(f"{shown} {what}.", column=column)
        named = tuple(names) if size > 1 else ()
        return NumberScales(tuple(self.mean.tolist()), tuple(scale.tolist()), named)


def _of_size(targets: list[float], size: int) -> list[float]:
    if len(targets) == size:
        return targets
    found, wanted = (f"{n} number{'' if n == 1 else 's'}" for n in (len(targets), size))
    raise RowFaultError(
        WRONG_SHAPE,
        f"the target has {found}; the rows before it have {wanted}",
        "label",
        fix="Give every row the same number of targets.",
    )


def num_targets(encoder: Encoder) -> int:
    """Return how many numbers are predicted for a row."""
    return 1 if encoder.target.numbers is None else len(encoder.target.numbers.mean)


def target_field(encoder: Encoder) -> Field:
    """Return one number per row, or a vector of them."""
    return Field(("class",) if num_targets(encoder) > 1 else (), "float32")


def name_targets(values: Any, encoder: Encoder) -> Any:
    """Predicted numbers by the names of their columns; those of one column of lists as a list."""
    if num_targets(encoder) == 1:
        return values[0]
    names = as_fitted(encoder.target.numbers).names
    if names == tuple(str(place) for place in range(len(names))):
        return values
    return dict(zip(names, values, strict=True))


PER_TARGET = "per_target"


def predicted_numbers(outputs: Any, num_targets: int) -> torch.Tensor:
    """Return the numbers of each row, (B, K), of logits (B, K) or, for one number, (B,)."""
    logits = full_precision(outputs.logits)
    return logits.reshape(len(logits), -1)[:, :num_targets]


def _sums(outputs: Any, batch: Batch, encoder: Encoder) -> dict[str, Any]:
    labels = batch["labels"].reshape(len(batch["labels"]), -1)
    return _error_sums(predicted_numbers(outputs, labels.shape[1]), labels, encoder)


def _error_sums(predicted: torch.Tensor, labels: torch.Tensor, encoder: Encoder) -> dict[str, Any]:
    labels = to_float64(labels)
    errors = to_float64(predicted) - labels
    scale = labels.new_tensor(as_fitted(encoder.target.numbers).scale)
    return {
        "absolute": (errors.abs() * scale).sum(0),
        "squared": (errors.square() * scale.square()).sum(0),
        "errors": errors.square().sum(0),
        "labels": labels.sum(0),
        "squares": labels.square().sum(0),
        "count": len(labels),
    }


Figures = Callable[[Mapping[str, Any]], list[float]]
OF_NUMBERS: dict[str, Figures] = {
    "mae": lambda sums: [float(total / sums["count"]) for total in sums["absolute"]],
    "rmse": lambda sums: [float((total / sums["count"]) ** 0.5) for total in sums["squared"]],
    "r2": lambda sums: [
        r2_of(*each, sums["count"])
        for each in zip(sums["errors"], sums["labels"], sums["squares"], strict=True)
    ],
}


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


def r2_of(errors: Any, labels: Any, squares: Any, count: Any) -> float:
    """1 minus the squared errors over the squared distances from the mean of these rows.

    As scikit-learn defines it: of equal targets, 1 if all are predicted exactly and 0 otherwise;
    unknown for a single row.
    """
    spread = float(squares) - float(labels) ** 2 / max(float(count), 1.0)
    if count < 2:
        return math.nan
    if spread <= CONSTANT * squares:
        return float(errors == 0)
    return 1 - float(errors) / spread


def fit_numbers(
    rows: Iterable[Mapping[str, Any]], encoder: Encoder
) -> tuple[FittedTarget, list[Finding]]:
    """Return the mean and the scale of the targets."""
    targets = TargetSpread(encoder.roles["label"])
    for row in rows:
        targets.add(row)
    return FittedTarget(numbers=targets.fitted()), []


def encode_numbers(row: Mapping[str, Any], encoder: Encoder) -> Any:
    """Return the targets in units of their spread."""
    targets = read_targets(row["label"])
    if targets is None:
        raise drop_row(DropReason.NO_LABEL)
    targets, scales = _of_size(targets, num_targets(encoder)), as_fitted(encoder.target.numbers)
    scaled = (np.asarray(targets) - scales.mean) / scales.scale
    return scaled if len(targets) > 1 else float(scaled[0])


def number_loss(outputs: Any, batch: Batch) -> tuple[torch.Tensor, int]:
    """Squared errors, in units of the target's spread, summed over the rows, and their number.

    Of several targets, a row's loss is the mean of their squared errors.
    """
    labels = batch["labels"].reshape(len(batch["labels"]), -1)
    errors = predicted_numbers(outputs, labels.shape[1]) - labels
    return errors.square().mean(-1).sum(), len(errors)


def numbers_in_units(
    outputs: Any, batch: Batch, encoder: Encoder
) -> tuple[torch.Tensor, torch.Tensor]:
    """Predictions and targets in the units of the data: (B,) each, or (B, K)."""
    made = predicted_numbers(outputs, num_targets(encoder)).reshape(batch["labels"].shape)
    return _in_units(made, encoder), _in_units(batch["labels"], encoder)


def _in_units(values: torch.Tensor, encoder: Encoder) -> torch.Tensor:
    values, scales = to_float64(values), as_fitted(encoder.target.numbers)
    return values * values.new_tensor(scales.scale) + values.new_tensor(scales.mean)


def decode_numbers(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """Return the numbers for each row, in the units of the data."""
    made = _in_units(predicted_numbers(outputs, num_targets(encoder)), encoder)
    return [{"prediction": name_targets(row, encoder)} for row in made.tolist()]


def number_settings(encoder: Encoder) -> dict[str, Any]:
    scales, kind = as_fitted(encoder.target.numbers), {"problem_type": "regression"}
    if not scales.names:
        return {**kind, "target_mean": scales.mean[0], "target_scale": scales.scale[0]}
    return {
        **kind,
        "target_mean": list(scales.mean),
        "target_scale": list(scales.scale),
        **output_names(scales.names),
    }
