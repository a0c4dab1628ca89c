"""How one's own module sees time steps: the axes of its input, and of its scores of classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


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
