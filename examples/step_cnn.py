"""A small network for classes of time steps, for `--model step_cnn:make`."""

from __future__ import annotations

import torch
from torch import nn


class StepCnn(nn.Module):
    """Dilated convolutions over time: each step sees about two seconds of 10 Hz around it."""

    def __init__(self, num_classes: int, channels: int = 6, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv1d(channels, width, 5, padding=2)
        self.layers = nn.ModuleList(
            nn.Conv1d(width, width, 5, padding=2 * dilation, dilation=dilation)
            for dilation in (1, 2, 4)
        )
        self.head = nn.Conv1d(width, num_classes, 1)

    def forward(self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Scores (B, num_classes, T) of series (B, T, channels); padding stays zero."""
        mask = attention_mask.unsqueeze(1).to(inputs_embeds.dtype)
        hidden = self.first(inputs_embeds.transpose(1, 2))
        for layer in self.layers:
            hidden = hidden + layer(torch.relu(hidden) * mask)
        return self.head(torch.relu(hidden))


def make(num_classes: int) -> nn.Module:
    """The network with one output per class."""
    return StepCnn(num_classes)
