"""Images as float32 planes [height, width, channels], in as many channels as the model reads.

Nothing is rounded to 8 bits: 16-bit images and floating-point arrays keep their values.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from surefit.data.cell_files import unwrapped
from surefit.data.data_rules import NOT_FINITE
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.image.image_files import (
    RGB,
    ChannelAxis,
    array_axes,
    convertible,
    float_range_of,
    not_an_image,
    open_upright,
    source_of,
)

if TYPE_CHECKING:
    from PIL import Image

Planes = npt.NDArray[np.float32]
Floats = TypeVar("Floats", npt.NDArray[np.float32], npt.NDArray[np.float64])

LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""What red, green and blue count in gray, as in Pillow."""
AS_THEY_ARE = -1.0
"""The `float_range` of images that are neither 0 to 1 nor 0 to 255: nothing is scaled."""


def read_values(value: Any, place: ChannelAxis = RGB) -> npt.NDArray[Any]:
    """A file, bytes, `{bytes, path}` or an array as [H, W, C], in its own values and dtype."""
    value = unwrapped(value)
    if isinstance(value, bytes):
        array = open_upright(io.BytesIO(value), f"{len(value)} bytes", _own_channels)
    elif isinstance(value, str):
        array = open_upright(source_of(value), value, _own_channels)
    else:
        array = array_axes(value, place)
    if not np.isfinite(array).all():
        raise RowFaultError(NOT_FINITE, "the image contains values that are not finite", "image")
    return array if array.ndim == 3 else array[:, :, None]


def _own_channels(image: Image.Image) -> npt.NDArray[Any]:
    """Return the pixels of a file: gray, RGB, or RGBA where it has transparency."""
    if image.mode.startswith("I"):
        return np.asarray(image).astype(np.uint16)
    if image.mode == "F":
        return np.asarray(image)
    if "A" in image.mode.upper() or "transparency" in image.info:
        return np.asarray(image.convert("RGBA"))
    return np.asarray(image.convert("L" if image.mode in ("1", "L") else "RGB"))


def top_of(values: npt.NDArray[Any]) -> float:
    """Return the largest value that such an image may have: 1, 255 or 65535."""
    if values.dtype == bool:
        return 1
    if values.dtype == np.uint16:
        return 65535
    return float_range_of(values) or 255


def is_outside(values: npt.NDArray[Any]) -> bool:
    """Return whether values are neither 0 to 1 nor 0 to 255, as those of normalised images."""
    return bool(values.min() < 0 or values.max() > top_of(values))


def read_planes(value: Any, channels: int, float_range: float, place: ChannelAxis = RGB) -> Planes:
    """Return an image as [H, W, `channels`] of values from 0 to 255, or as they are."""
    values = read_values(value, place)
    if float_range == AS_THEY_ARE:
        return as_channels(values.astype(np.float32), channels, 1.0)
    top = top_of(values)
    if values.dtype.kind == "f":
        top = float_range or top
    low, high = values.min(), values.max()
    if low < 0 or high > top:
        raise not_an_image(f"values from {low:g} to {high:g}; expected 0 to {top:g}")
    return as_channels(values.astype(np.float32) * np.float32(255 / top), channels, 255.0)


def as_channels(pixels: Floats, channels: int, opaque: float) -> Floats:
    """Return the image in gray, RGB or RGBA; what is transparent becomes white. Others stay as they
    are.

    >>> as_channels(np.full((1, 1, 3), 10, np.float32), 1, 255.0).round(3).tolist()
    [[[10.0]]]
    >>> as_channels(np.full((1, 1, 1), 10, np.float32), 4, 255.0).tolist()
    [[[10.0, 10.0, 10.0, 255.0]]]
    """
    found = pixels.shape[2]
    if found == channels:
        return pixels
    if not convertible(found, channels):
        raise not_an_image(f"{found} channels; expected {channels}")
    if found == 4:
        alpha = pixels[:, :, 3:] / opaque
        pixels = pixels[:, :, :3] * alpha + opaque * (1 - alpha)
    if channels == 1:
        return (pixels @ LUMA)[:, :, None] if pixels.shape[2] == 3 else pixels
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    if channels == 3:
        return pixels
    return np.concatenate([pixels, np.full_like(pixels[:, :, :1], opaque)], axis=2)
