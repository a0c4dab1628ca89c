"""How the scores of one's own module are read: a single logit for two classes, and time steps.

A module that returns one logit z for each target, as `BCEWithLogitsLoss` is trained with, is read
as one that returns [0, z]: the softmax of these is the sigmoid of z, and their cross-entropy is the
binary cross-entropy of z. Loss, metrics and predictions see two scores and need not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SingleLogit:
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
        >>> SingleLogit().of_both(torch.tensor([[2.0], [-1.0]])).tolist()
        [[0.0, 2.0], [0.0, -1.0]]
        """
        import torch

        if not self.is_alone(scores):
            return scores
        second = self.with_axis(scores)
        return torch.cat([torch.zeros_like(second), second], self.axis)


@dataclass(frozen=True)
class StepScores:
    """Where a module has the time, and how many time steps share one of its outputs."""

    classes_second: bool = False
    """Whether scores are (B, C, T)."""
    stride: int = 1
    reads_time_last: bool = False
    """Whether forward takes (B, W, T), as nn.Conv1d does."""

    def inputs(self, given: dict[str, Any], arguments: Mapping[str, str]) -> dict[str, Any]:
        """The arguments of `forward`, the features with the axes that it reads."""
        if not self.reads_time_last:
            return given
        turned = [arg for arg, column in arguments.items() if column == "inputs_embeds"]
        return {**given, **{arg: given[arg].transpose(1, 2) for arg in turned if arg in given}}

    def __call__(self, scores: torch.Tensor, num_steps: int) -> torch.Tensor:
        """Scores (B, T, C), one for each time step.

        >>> import torch
        >>> StepScores(True, 2)(torch.tensor([[[1, 2, 3]]]), 5).tolist()
        [[[1], [1], [2], [2], [3]]]
        """
        import torch

        scores = scores.transpose(1, 2) if self.classes_second else scores
        if self.stride == 1:
            return scores
        places = torch.arange(num_steps, device=scores.device) // self.stride
        return scores[:, places.clamp(max=scores.shape[1] - 1)]

    def as_choice(self) -> dict[str, Any]:
        """The value as a plan keeps it."""
        return asdict(self)


def covers(found: int, num_steps: int, stride: int) -> bool:
    """Whether so many outputs are one for each `stride` steps, the last one of fewer or more.

    >>> covers(3, 5, 2), covers(2, 5, 2), covers(4, 5, 2)
    (True, True, False)
    """
    return found in (num_steps // stride, -(-num_steps // stride))
