"""A small convolutional network, for `--model small_cnn:make`."""

from __future__ import annotations

import torch
from torch import nn


class SmallCnn(nn.Module):
    """Two convolutions and a linear head."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.head = nn.Linear(64 * 16, num_classes)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Class scores (B, num_classes) of pictures (B, 3, H, W)."""
        return self.head(self.body(pixel_values))


def make(num_classes: int) -> nn.Module:
    """The network with one output per class."""
    return SmallCnn(num_classes)
