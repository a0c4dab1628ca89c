"""Class weights and label smoothing: refused where the loss has no classes, else settled."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from surefit.config import LossOptions
from surefit.errors import UsageError
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import PLAIN, ClassLoss
from surefit.inputs.store import Store
from surefit.models.call import with_module_loss
from surefit.pipeline.pipeline import Pipeline
from surefit.targets.task_spec import TaskSpec
from surefit.tasks import TASKS

WEIGHTS, SMOOTHING = "loss.class_weights", "loss.label_smoothing"


def check_loss_options(options: LossOptions, task: TaskSpec, loss_fn: Any) -> None:
    """Refuse class weights and label smoothing where they would have no effect."""
    keys = _keys(options)
    if not keys:
        return
    if loss_fn is not None:
        raise UsageError(
            f"{keys[0]} has no effect with a loss_fn, which computes the loss.",
            "Leave one of them out.",
        )
    for key in keys:
        if not _has_effect(key, task):
            able = [spec.name for spec in TASKS.values() if _has_effect(key, spec)]
            of = "of classes" if key == WEIGHTS else "of classes or tokens"
            raise UsageError(
                f"{key} changes the cross-entropy {of}; the loss of {task.name} is another one.",
                f"Leave it out, or pass your own loss_fn from Python. Tasks that have it: "
                f"{', '.join(able)}.",
            )


def _has_effect(key: str, task: TaskSpec) -> bool:
    smooths = key == SMOOTHING and task.figures.smoothed_loss is not None
    return task.figures.class_scores is not None or smooths


def settle_loss(pipeline: Pipeline, options: LossOptions, train: Store) -> Pipeline:
    """Return the Pipeline with its class weights and label smoothing, which its Encoder keeps."""
    encoder = pipeline.encoder
    if not _keys(options):
        return pipeline
    weights = options.class_weights
    if weights == "balanced":
        settled: tuple[float, ...] | None = balanced_weights(train, len(encoder.classes))
    else:
        settled = None if weights is None else named_weights(weights, encoder)
    chosen = ClassLoss(settled, options.label_smoothing)
    encoder = encoder.with_settings(loss=chosen)
    loss = with_module_loss(pipeline.task.loss_for(encoder))
    return replace(pipeline, encoder=encoder, loss=loss)


def _keys(options: LossOptions) -> list[str]:
    weighs = [WEIGHTS] if options.class_weights else []
    return weighs + ([SMOOTHING] if options.label_smoothing else [])


def balanced_weights(train: Store, num_classes: int) -> tuple[float, ...]:
    """Weigh classes so that all count the same: targets / (classes × targets of the class).

    Where rows may have several classes: rows without the class / rows with it.
    """
    labels = train.values("labels")
    if labels.dtype.kind == "f":
        having = (labels.reshape(-1, num_classes) > 0.5).sum(0)
        num_rows = labels.size // num_classes
        return tuple(float((num_rows - n) / n) if 0 < n < num_rows else 1.0 for n in having)
    counts = np.bincount(labels[labels >= 0], minlength=num_classes)
    weights = counts.sum() / (num_classes * np.maximum(counts, 1))
    return tuple(float(w) for w in np.where(counts > 0, weights, 1.0))


def named_weights(weights: Mapping[str, float], encoder: Encoder) -> tuple[float, ...]:
    """Return the weights of named classes; the others have 1."""
    names = [str(name) for name in encoder.classes]
    unknown = next((name for name in weights if name not in names), None)
    if unknown is not None:
        close = difflib.get_close_matches(unknown, names, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        shown = ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
        raise UsageError(
            f"loss.class_weights names {unknown!r}, which is no class of the data.{hint}",
            f"The classes are: {shown}.",
        )
    return tuple(weights.get(name, 1.0) for name in names)


def describe_loss(encoder: Encoder) -> dict[str, Any] | None:
    """Return class weights by name and label smoothing for the plan; None for neither."""
    chosen = encoder.settings.loss
    if chosen == PLAIN:
        return None
    named, weights = None, chosen.class_weights
    if weights is not None:
        named = dict(zip(map(str, encoder.classes), weights, strict=True))
    return {"class_weights": named, "label_smoothing": chosen.label_smoothing}
