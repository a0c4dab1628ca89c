"""A small convolutional network on log-mel spectrograms, for `--model digit_cnn:make`."""

from __future__ import annotations

import torch
from torch import nn


def block(channels: int, out: int) -> nn.Module:
    """A convolution, and half as many bands and frames."""
    return nn.Sequential(
        nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)
    )


class DigitCnn(nn.Module):
    """Three convolutions, and a linear head on a grid of 4 by 4."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            block(1, 16), block(16, 32), block(32, 64), nn.AdaptiveAvgPool2d(4), nn.Flatten()
        )
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(64 * 16, num_classes))

    def forward(self, log_mel: torch.Tensor) -> torch.Tensor:
        """Class scores (B, num_classes) of spectrograms (B, 1, mels, frames)."""
        return self.head(self.body(log_mel))


def make(num_classes: int) -> nn.Module:
    """The network with one output per class."""
    return DigitCnn(num_classes)
