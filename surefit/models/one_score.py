"""Two classes by one score, that of the second class: what `BCEWithLogitsLoss` is trained with.

A module that returns one logit z for each target is read as one that returns [0, z]: the softmax
of these is the sigmoid of z, and their cross-entropy is the binary cross-entropy of z. Loss,
metrics and predictions see two scores and need not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class OneScore:
    """Where scores of two classes have the classes; an own module may leave that axis out."""

    rank: int = 2
    """Axes of the scores, that of the classes included: 2 for rows, 3 for time steps."""
    axis: int = -1

    def is_alone(self, scores: torch.Tensor) -> bool:
        """Whether there is one score for each target, with or without an axis for it."""
        return scores.ndim == self.rank - 1 or (
            scores.ndim == self.rank and scores.shape[self.axis] == 1
        )

    def with_axis(self, scores: torch.Tensor) -> torch.Tensor:
        """The scores with an axis of classes, which may have a single place."""
        return scores.unsqueeze(self.axis) if scores.ndim == self.rank - 1 else scores

    def of_both(self, scores: torch.Tensor) -> torch.Tensor:
        """The scores of both classes.

        >>> import torch
        >>> OneScore().of_both(torch.tensor([[2.0], [-1.0]])).tolist()
        [[0.0, 2.0], [0.0, -1.0]]
        """
        import torch

        if not self.is_alone(scores):
            return scores
        second = self.with_axis(scores)
        return torch.cat([torch.zeros_like(second), second], self.axis)
