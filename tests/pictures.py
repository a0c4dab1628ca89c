"""Pictures with a known class, and modules that can learn it."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SHAPES = ("disc", "frame", "stripes")

CNN_SOURCE = """
import torch
from torch import nn


def make(num_classes):
    return Net(num_classes)


class Net(nn.Module):
    def __init__(self, num_classes, width=12):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 4 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Linear(16 * width, num_classes)

    def forward(self, pixel_values):
        return self.head(self.body(pixel_values).flatten(1))
"""


def write_cnn(folder: Path, name: str = "cnn") -> str:
    """Write a user's convolutional net and return its `module:function` name."""
    (folder / f"{name}.py").write_text(CNN_SOURCE)
    return f"{name}:make"


def draw(shape: str, seed: int, height: int = 32, width: int = 32) -> np.ndarray[Any, Any]:
    """A shape in some colour at some place on a noisy dark ground, uint8 [H, W, 3]."""
    numbers = np.random.default_rng(seed)
    picture = numbers.integers(0, 60, (height, width, 3))
    colour = numbers.integers(140, 256, 3)
    size = int(0.6 * min(height, width))
    top, left = numbers.integers(0, height - size), numbers.integers(0, width - size)
    y, x = np.mgrid[:size, :size] / (size - 1) * 2 - 1
    if shape == "disc":
        inside = x**2 + y**2 < 1
    elif shape == "frame":
        inside = np.maximum(abs(x), abs(y)) > 0.6
    else:
        inside = np.floor((y + 1) * 2.99) % 2 == 0
    picture[top : top + size, left : left + size][inside] = colour
    return picture.astype(np.uint8)


def shape_rows(count: int, first: int = 0, height: int = 32, width: int = 32) -> list[Any]:
    """Arrays with the name of the shape in them."""
    return [
        {"image": draw(SHAPES[n % 3], first + n, height, width), "label": SHAPES[n % 3]}
        for n in range(count)
    ]


def read_idx(path: Path) -> np.ndarray[Any, Any]:
    """A gzipped IDX file of bytes."""
    raw = gzip.decompress(path.read_bytes())
    axes = [int.from_bytes(raw[4 + 4 * n : 8 + 4 * n], "big") for n in range(raw[3])]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * len(axes)).reshape(axes)


def fashion(shared: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The pictures and classes of fashion-mnist that are there."""
    folder = shared / "data" / "fashion-mnist"
    return (
        read_idx(folder / "t10k-images-idx3-ubyte.gz"),
        read_idx(folder / "t10k-labels-idx1-ubyte.gz"),
    )


def write_png(path: Path, pixels: np.ndarray[Any, Any]) -> None:
    """Save pixels as a PNG file, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def disc_rows(count: int, first: int = 0, size: int = 24) -> list[Any]:
    """A bright disc on dark noise, and the mask of the disc."""
    rows = []
    for n in range(count):
        numbers = np.random.default_rng(first + n)
        image = numbers.integers(0, 90, (size, size, 3)).astype(np.uint8)
        y, x = np.mgrid[:size, :size]
        down, right = numbers.uniform(6, size - 6, 2)
        inside = (y - down) ** 2 + (x - right) ** 2 < numbers.uniform(4, 8) ** 2
        image[inside] = numbers.integers(130, 256, (int(inside.sum()), 3))
        rows.append({"image": image, "mask": inside.astype(np.uint8)})
    return rows


def write_discs(folder: Path, count: int, first: int = 0, size: int = 24) -> None:
    """Discs as PNG files in `images`, their masks in `masks`."""
    for number, row in enumerate(disc_rows(count, first, size)):
        write_png(folder / "images" / f"{number}.png", row["image"])
        write_png(folder / "masks" / f"{number}.png", row["mask"])
