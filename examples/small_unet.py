"""A small network for classes of pixels, for `--model small_unet:make`."""

from __future__ import annotations

import torch
from torch import nn


class SmallUnet(nn.Module):
    """Two steps down, two steps up, with what was seen on the way down beside it."""

    def __init__(self, num_classes: int, width: int = 16) -> None:
        super().__init__()
        self.first = _block(1, width)
        self.second = _block(width, 2 * width)
        self.deepest = _block(2 * width, 4 * width)
        self.second_up = _block(6 * width, 2 * width)
        self.first_up = _block(3 * width, width)
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Scores (B, num_classes, H, W) of images (B, 1, H, W); H and W are multiples of 4."""
        first = self.first(pixel_values)
        second = self.second(nn.functional.max_pool2d(first, 2))
        deepest = self.deepest(nn.functional.max_pool2d(second, 2))
        second = self.second_up(torch.cat([_double(deepest), second], 1))
        return self.head(self.first_up(torch.cat([_double(second), first], 1)))


def _block(before: int, after: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs in (before, after):
        layers += [nn.Conv2d(inputs, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


def _double(values: torch.Tensor) -> torch.Tensor:
    return nn.functional.interpolate(values, scale_factor=2)


def make(num_classes: int) -> nn.Module:
    """The network with one output per class."""
    return SmallUnet(num_classes)
