"""Class weights and label smoothing, as torch's `cross_entropy` defines them.

With weights, the loss of a target counts as often as the weight of its class: the divisor is the
sum of these weights, and not the number of targets.

Where a row may have several classes, its loss is the mean of binary cross-entropies. A weight then
counts the rows that have the class against those that have not, as `pos_weight` of torch's
`binary_cross_entropy_with_logits` does, and the divisor is the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.inputs.augment.array_augment import LABELS, SHARE
from surefit.inputs.encoder_state import PLAIN, ClassLoss

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]
ClassScores = Callable[[Any, Mapping[str, Any]], "tuple[torch.Tensor, torch.Tensor]"]
"""Outputs and batch to the scores and the class of each target: (N, C) and (N,)."""


def loss_divisor(options: ClassLoss, labels: Array) -> float:
    """Return what the summed loss of these labels is divided by; labels below 0 are ignored."""
    if labels.dtype.kind == "f":  # a place for each class
        return labels.size / len(options.class_weights or labels)
    labels = labels[labels >= 0]
    if options.class_weights is None:
        return len(labels)
    return float(np.asarray(options.class_weights)[labels].sum())


def loss_of_shares(options: ClassLoss, known: Array, judged: Array) -> float:
    """Mean loss of the best constant prediction: fitted on one count of classes, judged on
    another."""
    weights = np.asarray(options.class_weights or np.ones(len(known)), np.float64)
    best = _smoothed(weights, known, options.label_smoothing)
    losses = -np.log(np.maximum(best / best.sum(), 1e-12))
    total = (_smoothed(weights, judged, options.label_smoothing) * losses).sum()
    return float(total / (weights * judged).sum())


def loss_of_several(options: ClassLoss, shares: Array, judged: Array) -> float:
    """Mean loss of the best constant probabilities where rows may have several classes: fitted
    on the share of rows with each class, judged on rows of 0 and 1, (N, C)."""
    weights = np.asarray(options.class_weights or np.ones(len(shares)), np.float64)
    known, true = (_towards_half(each, options.label_smoothing) for each in (shares, judged))
    best = np.clip(weights * known / (weights * known + 1 - known), 1e-6, 1 - 1e-6)
    losses = -weights * true * np.log(best) - (1 - true) * np.log1p(-best)
    return float(losses.mean())


def _towards_half(targets: Any, smoothing: float) -> Any:
    """Targets of 0 and 1, smoothed: this share of each is spread over both."""
    return targets * (1 - smoothing) + smoothing / 2


def _smoothed(weights: Array, counts: Array, smoothing: float) -> Array:
    """Return how much each class's negative log-probability counts, for rows with these classes."""
    spread = smoothing * counts.sum() / len(counts)
    return np.asarray(weights * ((1 - smoothing) * counts + spread))


def class_loss(scores: ClassScores, options: ClassLoss = PLAIN) -> Callable[[Any, Any], Any]:
    """Return the cross-entropy of a task with classes: a sum, and the number or weight of its
    targets.

    Where rows may have several classes, a row's loss is the mean of its binary cross-entropies.
    """
    weights, smoothing = options.class_weights, options.label_smoothing

    def loss(outputs: Any, batch: Mapping[str, Any]) -> tuple[torch.Tensor, Any]:
        logits, labels = scores(outputs, batch)
        weight = None
        if weights is not None:  # outputs that are no class of the data have the weight 1
            weight = logits.new_tensor([*weights, *[1.0] * (logits.shape[-1] - len(weights))])
        if labels.is_floating_point():
            return several_classes_sum(logits, labels, weight, smoothing), len(labels)
        total = cross_entropy_sum(logits, labels, batch, weight, smoothing)
        return total, len(labels) if weight is None else weight[labels].sum()

    return loss


def several_classes_sum(
    logits: torch.Tensor,
    labels: torch.Tensor,
    weight: torch.Tensor | None = None,
    smoothing: float = 0.0,
) -> torch.Tensor:
    """Return the mean binary cross-entropy of each row's classes (B, C), summed over the rows."""
    from torch.nn.functional import binary_cross_entropy_with_logits

    targets = _towards_half(labels.to(logits.dtype), smoothing)
    each = binary_cross_entropy_with_logits(logits, targets, pos_weight=weight, reduction="none")
    total: torch.Tensor = each.mean(-1).sum()
    return total


def cross_entropy_sum(
    logits: torch.Tensor,
    labels: torch.Tensor,
    batch: Mapping[str, Any],
    weight: torch.Tensor | None = None,
    smoothing: float = 0.0,
) -> torch.Tensor:
    """Cross-entropy summed over the targets; that of mixed rows is shared by both classes."""
    from torch.nn.functional import cross_entropy

    if SHARE not in batch:
        return cross_entropy(logits, labels, weight, label_smoothing=smoothing, reduction="sum")
    share = batch[SHARE].to(logits.dtype)
    own, its = (
        cross_entropy(logits, classes, weight, label_smoothing=smoothing, reduction="none")
        for classes in (labels, batch[LABELS])
    )
    mixed: torch.Tensor = (share * own + (1 - share) * its).sum()
    return mixed


def class_probabilities(
    scores: ClassScores,
) -> Callable[[Any, Mapping[str, Any], Any], tuple[torch.Tensor, torch.Tensor]]:
    """Return the probability of each class, (N, C), and the class or classes of each target."""

    def values(outputs: Any, batch: Mapping[str, Any], encoder: Any) -> Any:
        logits, labels = scores(outputs, batch)
        return logits.sigmoid() if labels.ndim == 2 else logits.softmax(-1), labels

    return values
