"""The loss and the metrics of tasks that predict tokens: sums over the learned positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surefit.batches.field import IGNORED
from surefit.tasks.task_spec import Batch, Loss, Metric, SumAndCount, full_precision

if TYPE_CHECKING:
    import torch

Select = Callable[[Any, Batch], "tuple[torch.Tensor, torch.Tensor]"]
"""Logits (N, V) and labels (N,) of the learned positions."""


@dataclass(frozen=True)
class Learned:
    """What a model gave at the learned positions alone, already compared with their labels.

    `total` is the summed cross-entropy, `hits` how often the label was the most likely token
    (None in training), `count` the number of positions.
    """

    total: torch.Tensor
    hits: torch.Tensor | None
    count: int


def in_place(outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Each label is predicted at its own position."""
    learned = batch["labels"] != IGNORED
    return outputs.logits[learned], batch["labels"][learned]


def from_before(outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Each label is predicted at the position before it, as causal models do."""
    labels = batch["labels"][:, 1:]
    learned = labels != IGNORED
    return outputs.logits[:, :-1][learned], labels[learned]


def token_loss(select: Select) -> Loss:
    """Cross-entropy summed over the learned tokens, and their number."""

    def loss(outputs: Any, batch: Batch) -> tuple[torch.Tensor, int]:
        from torch.nn.functional import cross_entropy

        if isinstance(outputs, Learned):
            return outputs.total, outputs.count
        logits, labels = select(outputs, batch)
        return cross_entropy(full_precision(logits), labels, reduction="sum"), labels.numel()

    return loss


def token_metrics(select: Select) -> dict[str, SumAndCount | Metric]:
    """Perplexity, and the share of learned tokens that are the most likely ones."""
    loss = token_loss(select)

    def loss_sums(outputs: Any, batch: Batch) -> dict[str, Any]:
        total, count = loss(outputs, batch)
        return {"loss": total.double(), "count": count}

    def token_accuracy(outputs: Any, batch: Batch) -> tuple[Any, int]:
        if isinstance(outputs, Learned):
            return outputs.hits, outputs.count
        logits, labels = select(outputs, batch)
        return (logits.argmax(-1) == labels).sum(), labels.numel()

    perplexity = Metric(loss_sums, lambda sums: float((sums["loss"] / sums["count"]).exp()))
    return {"perplexity": perplexity, "token_accuracy": token_accuracy}
