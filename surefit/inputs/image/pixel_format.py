"""Images to `pixel_values`: size, mean and scale, fitted once and saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.inputs.image.image_files import LAST, RGB, ChannelAxis, decode
from surefit.inputs.image.image_planes import Planes, read_planes

if TYPE_CHECKING:
    from PIL import Image

BILINEAR = 2


@dataclass(frozen=True)
class PixelFormat:
    """How an image becomes `pixel_values`: (pixel * scale - mean) / std, channels first.

    The image is resized to height × width. With `edge`, its shorter side is resized to that length,
    and the center is cropped.
    """

    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 1 / 255
    resample: int = BILINEAR
    edge: int | None = None
    reversed_channels: bool = False
    float_range: float = 0
    """The largest value of floating-point arrays: 1 or 255; 0 if there were none; below 0 for
    images whose values are used as they are."""
    channels: int = 3
    axis: int = LAST
    """The axis of the channels in arrays, where both can be."""
    exact: bool = False
    """Whether values are not rounded to 8 bits, as image processors do it."""

    def pixel_values(self, value: Any) -> npt.NDArray[np.float32]:
        """Any value that `decode` reads, as float32 [channels, height, width]."""
        if self.exact or self.channels != 3:
            planes = read_planes(value, self.channels, self.float_range, self.place)
            pixels = self._resized_planes(planes)
        else:
            image = decode(value, self.float_range, self.place)
            pixels = np.asarray(self._resized(image), np.float32)
        if self.reversed_channels:
            pixels = pixels[:, :, ::-1]
        scaled = pixels * np.float32(self.scale)
        normal = (scaled - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return np.ascontiguousarray(normal.transpose(2, 0, 1))

    @property
    def place(self) -> ChannelAxis:
        """Where arrays have their channels."""
        return ChannelAxis(self.axis, self.channels)

    def resize_mask(self, mask: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """The classes of pixels at the size of `pixel_values`; none are blended."""
        from PIL import Image

        if self.edge is None and mask.shape == (self.height, self.width):
            return mask
        nearest = replace(self, resample=Image.Resampling.NEAREST)
        return np.asarray(nearest._resized(Image.fromarray(mask)), np.int32)

    def _resized_planes(self, pixels: Planes) -> Planes:
        from PIL import Image

        if self.edge is None and pixels.shape[:2] == (self.height, self.width):
            return pixels
        planes = (Image.fromarray(np.ascontiguousarray(p)) for p in pixels.transpose(2, 0, 1))
        return np.stack([np.asarray(self._resized(plane)) for plane in planes], axis=2)

    def _resized(self, image: Image.Image) -> Image.Image:
        from PIL import Image

        how = Image.Resampling(self.resample)
        if self.edge is None:
            return image.resize((self.width, self.height), how)
        width, height = image.size
        short = min(width, height)
        size = (int(self.edge * width / short), int(self.edge * height / short))
        left, top = (size[0] - self.width) // 2, (size[1] - self.height) // 2
        return image.resize(size, how).crop((left, top, left + self.width, top + self.height))

    def processor_config(self) -> dict[str, Any]:
        """The settings in the format of transformers' preprocessor_config.json."""
        exact = {"height": self.height, "width": self.width}
        cropped = self.edge is not None
        plain = "CLIPImageProcessor" if cropped else "ViTImageProcessor"
        return {
            "image_processor_type": "MobileViTImageProcessor" if self.reversed_channels else plain,
            "do_flip_channel_order": self.reversed_channels,
            "do_convert_rgb": True,
            "do_resize": True,
            "size": {"shortest_edge": self.edge} if cropped else exact,
            "do_center_crop": cropped,
            "crop_size": exact,
            "resample": self.resample,
            "do_rescale": True,
            "rescale_factor": self.scale,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }


@dataclass(frozen=True)
class ImageHints:
    """What is known about images before they are read: set by the user, of the model, of arrays.

    `model` has fields of a PixelFormat (see `from_processor`) and `size`, `multiple_of`, `inputs`,
    `convolutions`.
    """

    size: tuple[int, int] | None = None
    channels: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    place: ChannelAxis = RGB
    """Where arrays have their channels."""


NO_HINTS = ImageHints()


def from_processor(processor: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a transformers image processor, as fields of a PixelFormat.

    >>> from_processor({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224},
    ...                 "do_center_crop": True, "do_normalize": False})["edge"]
    256
    """
    known: dict[str, Any] = {"scale": processor.get("rescale_factor") or 1 / 255}
    if processor.get("do_rescale") is False:
        known["scale"] = 1.0
    known["mean"], known["std"] = [0.0] * 3, [1.0] * 3
    if processor.get("do_normalize") and processor.get("image_mean"):
        known |= {"mean": processor["image_mean"], "std": processor["image_std"]}
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
        known |= {"size": list(size), "edge": edge}
    return known


def _two_sides(size: Any) -> tuple[int, int] | None:
    if isinstance(size, Mapping) and size.get("height") and size.get("width"):
        return int(size["height"]), int(size["width"])
    return None
