"""What the files or the layers of a model say about its inputs, before any row is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KIND = "feature_extractor_type"
"""The key of transformers' preprocessor_config.json that names the class."""
MAX_SIDE = 1 << 14
"""Pixels of the longest side of images that a model may ask for."""

RunsOn = Callable[[Mapping[str, Sequence[int]], Collection[str]], bool]


@dataclass(frozen=True)
class Hints:
    """What is known about the axes besides the rows themselves.

    `steps` and `width` are set by the user, or follow from the labels of time steps. `trained` is
    the feature size of a trained model. The others are from the model's config;
    `accepts(steps, width)` tries a module on such an input.
    """

    steps: int | None = None
    width: int | None = None
    trained: int | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    positions: int | None = None
    layers: tuple[int, ...] = ()
    """Feature sizes that layers of a module take."""
    accepts: Callable[[int, int], bool] | None = None
    reads_vectors: Callable[[int], bool | None] | None = None
    """Tries the model on vectors of a size, one per row; None if that cannot be tried. A model
    without it reads sequences only."""
    image: Mapping[str, int | None] | None = None
    """Of a custom module: the `channels` its first layer reads, or the number of its `inputs`."""
    reads_images: Callable[[int, int, int], bool | None] | None = None
    """Tries a module on images of so many channels, a height and a width; None if that cannot be
    tried."""
    runs_on: RunsOn | None = None
    """Tries a module on columns of these shapes, those of the given names as integers."""
    arguments: tuple[str, ...] = ()
    """The arguments of a module's forward."""
    required: tuple[str, ...] | None = None
    """Those without a default; None for models of transformers, whose columns have fixed names."""
    labels: bool = False
    """Whether the labels of time steps give `steps` or `width`."""


@dataclass(frozen=True)
class AudioInputs:
    """What is known of a model before the audio is looked at."""

    extractor: Mapping[str, Any] = field(default_factory=dict)
    """Settings of its feature extractor, as in preprocessor_config.json; empty for a module."""
    least_samples: int = 1
    untrained: bool = False
    """Whether the extractor, and the model with it, can be fitted to the data."""
    sizes: tuple[int, ...] = ()
    """Sizes that layers of a custom module expect, which may be mel bands."""
    gives_rows: Callable[..., bool] | None = None
    """Tries a custom module: whether it gives one output per row for rows of a shape, whose time
    is the axis of that number; with `columns`, for several columns of audio."""


def from_processor(processor: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a transformers image processor, as fields of a PixelFormat.

    >>> from_processor({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224},
    ...                 "do_center_crop": True, "do_normalize": False})["edge"]
    256
    """
    known: dict[str, Any] = {"scale": processor.get("rescale_factor") or 1 / 255}
    if processor.get("do_rescale") is False:
        known["scale"] = 1.0
    known["mean"], known["std"] = [0.0] * 3, [1.0] * 3
    if processor.get("do_normalize") and processor.get("image_mean"):
        known |= {key: [float(n) for n in processor[f"image_{key}"]] for key in ("mean", "std")}
    if processor.get("resample") is not None:
        known["resample"] = int(processor["resample"])
    known["reversed_channels"] = bool(processor.get("do_flip_channel_order"))
    size, edge = _two_sides(processor.get("size")), None
    crop = _two_sides(processor.get("crop_size")) if processor.get("do_center_crop") else None
    shortest = (processor.get("size") or {}).get("shortest_edge")
    if shortest and processor.get("crop_pct"):  # as ConvNeXt does, except for large images
        size, edge = (shortest, shortest), int(shortest / processor["crop_pct"])
        if shortest >= 384:
            edge = None
    elif shortest and crop:
        size, edge = crop, shortest
    elif shortest:
        size = (shortest, shortest)
    if size is not None:
        if not all(0 < side <= MAX_SIDE for side in size):
            raise ValueError(
                f"its images are {size[0]} x {size[1]} pixels; expected 1 to {MAX_SIDE}"
            )
        known |= {"size": list(size), "edge": edge}
    return known


def _two_sides(size: Any) -> tuple[int, int] | None:
    if isinstance(size, Mapping) and size.get("height") and size.get("width"):
        return int(size["height"]), int(size["width"])
    return None
