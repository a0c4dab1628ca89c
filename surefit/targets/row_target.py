"""What is learned of each row: its class or classes, or its numbers.

With an input of rows (`inputs/row_input.py`) it makes a task (`tasks/row_task.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from surefit.batches.field import Field
from surefit.findings import Finding
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedTarget
from surefit.inputs.row_input import Row
from surefit.targets import classes, number_targets
from surefit.targets.baselines import (
    class_baselines,
    judge_classes,
    judge_numbers,
    number_baselines,
)
from surefit.targets.class_loss import class_loss, class_probabilities
from surefit.targets.metrics.class_metrics import usual_metrics
from surefit.targets.task_spec import Batch, Figures, Loss, Metric, SumAndCount


@dataclass(frozen=True)
class RowTarget:
    """What is learned for each row: how labels are fitted and encoded, the output, the loss."""

    fit: Callable[[Iterable[Row], Encoder], tuple[FittedTarget, list[Finding]]]
    encode: Callable[[Row, Encoder], Any]
    """The `labels` of a row."""
    field: Callable[[Encoder], Field]
    size: Callable[[Encoder], int]
    config: Callable[[Encoder], dict[str, Any]]
    """What the target sets in the config of a transformers model."""
    loss: Loss
    metrics: Mapping[str, SumAndCount | Metric]
    decode: Callable[[Any, Batch, Encoder], list[dict[str, Any]]]
    figures: Figures
    """`judge` is used for rows of tables only."""
    unit: str = "classes"


CLASSES = RowTarget(
    lambda rows, encoder: (FittedTarget(classes=classes.fit_classes(rows, encoder)), []),
    classes.class_id,
    classes.label_field,
    lambda encoder: len(encoder.classes),
    classes.class_settings,
    class_loss(classes.class_scores),
    usual_metrics(classes.class_scores),
    classes.decode_classes,
    Figures(
        classes.class_scores,
        predicted_values=class_probabilities(classes.class_scores),
        best="accuracy",
        baselines=class_baselines,
        judge=judge_classes,
    ),
)
"""The class of a row, or its classes."""

NUMBERS = RowTarget(
    number_targets.fit_numbers,
    number_targets.encode_numbers,
    number_targets.target_field,
    number_targets.num_targets,
    number_targets.number_settings,
    number_targets.number_loss,
    number_targets.NUMBER_METRICS,
    number_targets.decode_numbers,
    Figures(
        predicted_values=number_targets.numbers_in_units,
        best="rmse",
        baselines=number_baselines,
        judge=judge_numbers,
    ),
    unit="numbers per row",
)
"""The number of a row, or its numbers."""
