"""The loss and the metrics of tasks that predict tokens: sums over the labelled tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surefit.batches.field import IGNORE_INDEX
from surefit.tasks.task_spec import Batch, Loss, Metric, SumAndCount, full_precision
from surefit.wide_numbers import as_double

if TYPE_CHECKING:
    import torch

Select = Callable[[Any, Batch], "tuple[torch.Tensor, torch.Tensor]"]
"""Logits (N, V) and labels (N,) of the labelled tokens."""


@dataclass(frozen=True)
class LabelledLoss:
    """What a model gave at the labelled tokens alone, already compared with their labels.

    `total` is the summed cross-entropy, `hits` how often the label was the most likely token
    (None in training), `count` the number of positions, `auxiliary_loss` the terms that the model
    adds to its token loss. With label smoothing, `plain` is the total without it (None in
    training).
    """

    total: torch.Tensor
    hits: torch.Tensor | None
    count: int
    auxiliary_loss: torch.Tensor | None = None
    plain: torch.Tensor | None = None


def same_token(outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Each label is predicted at its own position."""
    labelled = batch["labels"] != IGNORE_INDEX
    return outputs.logits[labelled], batch["labels"][labelled]


def next_token(outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Each label is predicted at the position before it, as causal models do."""
    labels = batch["labels"][:, 1:]
    labelled = labels != IGNORE_INDEX
    return outputs.logits[:, :-1][labelled], labels[labelled]


def token_loss(select: Select, smoothing: float = 0.0) -> Loss:
    """Cross-entropy summed over the labelled tokens, and their number."""

    def loss(outputs: Any, batch: Batch) -> tuple[torch.Tensor, int]:
        from torch.nn.functional import cross_entropy

        if isinstance(outputs, LabelledLoss):
            if outputs.plain is not None and not smoothing:
                return outputs.plain, outputs.count
            return outputs.total, outputs.count
        logits, labels = select(outputs, batch)
        total = cross_entropy(
            full_precision(logits), labels, reduction="sum", label_smoothing=smoothing
        )
        return total, labels.numel()

    return loss


def smoothed_sums(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The summed loss; and without label smoothing, where it is smoothed and not trained on."""
    import torch
    from torch.nn.functional import cross_entropy

    total = cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
    if not smoothing or torch.is_grad_enabled():
        return total, None
    return total, cross_entropy(logits, labels, reduction="sum")


def token_metrics(select: Select) -> dict[str, SumAndCount | Metric]:
    """Perplexity, without label smoothing, and the share of labelled tokens that are the most
    likely ones."""
    loss = token_loss(select)

    def loss_sums(outputs: Any, batch: Batch) -> dict[str, Any]:
        total, count = loss(outputs, batch)
        return {"loss": as_double(total), "count": count}

    def token_accuracy(outputs: Any, batch: Batch) -> tuple[Any, int]:
        if isinstance(outputs, LabelledLoss):
            return outputs.hits, outputs.count
        logits, labels = select(outputs, batch)
        return (logits.argmax(-1) == labels).sum(), labels.numel()

    perplexity = Metric(loss_sums, lambda sums: float((sums["loss"] / sums["count"]).exp()))
    return {"perplexity": perplexity, "token_accuracy": token_accuracy}
