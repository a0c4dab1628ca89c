"""Images to `pixel_values`: size, mean and scale, fitted once and saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.inputs.image.image_files import LAST, RGB, ChannelAxis, Planes, decode, read_planes

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
        """Return the classes of pixels at the size of `pixel_values`; none are blended."""
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
        """Return the settings in the format of transformers' preprocessor_config.json."""
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
