"""What all classifications of rows share: their targets, loss, metrics, predictions and head."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from surefit.encode.encoder import Encoder
from surefit.tasks.baselines import class_baselines
from surefit.tasks.classes import (
    CONFUSION,
    MACRO_F1,
    accuracy,
    class_id,
    class_loss,
    class_scores,
    class_settings,
    decode_classes,
    probabilities,
)
from surefit.tasks.task_spec import Head, Metric, SumAndCount, TaskSpec

CLASS_METRICS: Mapping[str, SumAndCount | Metric] = {
    "accuracy": accuracy,
    "macro_f1": MACRO_F1,
    "confusion": CONFUSION,
}
class_task = partial(
    TaskSpec,
    baselines=class_baselines,
    loss=class_loss,
    class_scores=class_scores,
    predicted_values=probabilities,
    metrics=CLASS_METRICS,
    best="accuracy",
    decode=decode_classes,
)
"""Make a TaskSpec that learns the class or the classes of a row."""
class_head = partial(Head, size=lambda encoder: len(encoder.classes), config=class_settings)


def class_targets(row: Mapping[str, Any], encoder: Encoder) -> dict[str, Any]:
    """The class or classes of a row; nothing for a row to predict on."""
    return {"labels": class_id(row, encoder)} if "label" in row else {}
