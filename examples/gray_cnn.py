"""A convolutional network for images of one channel, for `--model gray_cnn:make`."""

from __future__ import annotations

from torch import nn


def make(num_classes: int) -> nn.Module:
    """Four convolutions and a linear head: (B, 1, H, W) to (B, num_classes)."""
    return nn.Sequential(
        *_convolution(1, 24),
        *_convolution(24, 32),
        nn.MaxPool2d(2),
        *_convolution(32, 64),
        nn.MaxPool2d(2),
        *_convolution(64, 96),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(96 * 9, num_classes),
    )


def _convolution(before: int, after: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
