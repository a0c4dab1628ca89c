"""Images of every kind (files, bytes, arrays): as 8-bit RGB, upright, on white; or as float32
planes of any number of channels, which keep the values of 16 bits and floating point.

The channels of an array are its first axis or its last (`ChannelAxis`).
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from surefit.core.files import special_kind
from surefit.data.cell_files import shown_name, unwrapped
from surefit.data.column_types import CHANNELS
from surefit.data.data_rules import NOT_FINITE, UNREADABLE_MEDIA
from surefit.data.row_parts import file_content
from surefit.findings import rule
from surefit.inputs.encoded_row import RowFaultError

if TYPE_CHECKING:
    from PIL import Image

FIRST, LAST = 0, 2


@dataclass(frozen=True)
class ChannelAxis:
    """The number of channels that images of the data have, and the axis on which they are."""

    axis: int = LAST
    channels: int = 3

    def is_first(self, shape: Sequence[int]) -> bool | None:
        """Return whether the first of an image's three axes has its channels; None if none can be.

        Rows to evaluate or to predict may have the other layout than the training rows.

        >>> ChannelAxis(LAST, 3).is_first((3, 8, 8)), ChannelAxis(FIRST, 5).is_first((8, 8, 3))
        (True, None)
        """
        expected = CHANNELS if self.channels in CHANNELS else (self.channels,)
        axes = (self.axis, FIRST + LAST - self.axis)
        found = next((axis for axis in axes if shape[axis] in expected), None)
        return None if found is None else found == FIRST


def own_axis(shape: Sequence[int]) -> int:
    """Return the axis of the channels by the shape alone.

    It is one of the length 1, 3 or 4; else that beside two equal sides; else the shorter one.

    >>> [own_axis(shape) for shape in ((9, 9, 3), (5, 8, 8), (8, 8, 12), (9, 40, 5))]
    [2, 0, 2, 2]
    """
    first, middle, last = shape
    usual = [axis for axis in (LAST, FIRST) if shape[axis] in CHANNELS]
    if usual:
        return usual[0]
    if (first == middle) != (middle == last):
        return LAST if first == middle else FIRST
    return LAST if last < first else FIRST


def convertible(found: int, wanted: int) -> bool:
    """Return whether images of `found` channels can be read with `wanted` ones."""
    return found == wanted or {found, wanted} <= {*CHANNELS}


ARRAY_NOT_AN_IMAGE = rule(
    "SF251",
    "error",
    "array that is not an image",
    why=(
        "Images are [height, width], or have channels as the first or the last axis, as many in "
        "all rows."
    ),
    fix="Save all images with one number of channels: uint8 [height, width, channels].",
)

# Formats that Pillow reads itself; for EPS it would run Ghostscript.
FORMATS = (
    *("AVIF", "BMP", "DIB", "GIF", "ICNS", "ICO", "JPEG", "JPEG2000", "MPO", "PCX", "PNG"),
    *("PPM", "QOI", "SGI", "TGA", "TIFF", "WEBP", "XBM", "XPM"),
)

Made = TypeVar("Made")
RGB = ChannelAxis()


def decode(value: Any, float_range: float = 0, place: ChannelAxis = RGB) -> Image.Image:
    """Return a file, bytes, `{bytes, path}` or an array as an upright RGB image.

    Transparent pixels become white, 16 bits become 8, and of an animation the first frame is used.
    Arrays are [H, W], [H, W, C] or [C, H, W]. Floating-point arrays range from 0 to `float_range`
    (1 or 255; 0 to infer it from the largest value). Anything else raises a RowFaultError.
    """
    return read_image(
        value,
        lambda image: _as_rgb(image, float_range),
        lambda array: from_array(array, float_range, place),
    )


@cache
def readable_formats() -> tuple[str, ...]:
    """Return those of the `FORMATS` that this Pillow can read."""
    from PIL import Image

    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def read_image(
    value: Any,
    convert: Callable[[Image.Image], Made],
    of_array: Callable[[Any], Made],
    name: str = "",
) -> Made:
    """What `convert` makes of the upright image of a file, bytes or `{bytes, path}`; else what
    `of_array` makes of the value. `name` is that of bytes in messages."""
    from PIL import Image, ImageOps

    source = unwrapped(value)
    shown = name if name and isinstance(source, bytes) else shown_name(value)
    if not isinstance(source, str | bytes):
        return of_array(source)
    kind = special_kind(source) if isinstance(source, str) else None
    if kind is not None:  # which may be waited for without end
        raise RowFaultError(UNREADABLE_MEDIA, f"{shown} is {kind}, not a file", "image")
    source = io.BytesIO(source) if isinstance(source, bytes) else source
    formats = readable_formats()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(source, formats=formats) as image:
                image.seek(0)
                image.load()
                return convert(ImageOps.exif_transpose(image))
    except RowFaultError as fault:
        raise RowFaultError(fault.rule, f"{shown}: {fault.message}", fault.column) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise RowFaultError(UNREADABLE_MEDIA, f"{shown}: {error}", "image") from None
    except FileNotFoundError:
        raise RowFaultError(UNREADABLE_MEDIA, f"there is no file {shown}", "image") from None
    except Exception as error:  # decoders raise all kinds of errors on damaged bytes
        reason = "Pillow does not recognise an image format" if "identify" in str(error) else error
        raise RowFaultError(
            UNREADABLE_MEDIA, f"{shown} cannot be read: {reason}", "image"
        ) from None


def _as_rgb(image: Image.Image, float_range: float = 0) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I"):  # Pillow would clip these at 255
        return from_array(np.asarray(image).astype(np.uint16), float_range)
    if image.mode == "F":
        return from_array(np.asarray(image), float_range)
    if "A" in image.mode.upper() or "transparency" in image.info:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def from_array(value: Any, float_range: float = 0, place: ChannelAxis = RGB) -> Image.Image:
    """Return an array as an RGB image; integers range to 255, those of uint16 to 65535."""
    from PIL import Image

    pixels = _as_bytes(array_axes(value, place), float_range)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    return _as_rgb(Image.fromarray(np.ascontiguousarray(pixels)))


def array_axes(value: Any, place: ChannelAxis = RGB) -> npt.NDArray[Any]:
    """Return an array of pixels as [H, W] or [H, W, C]; `place` is where the channels are."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise not_an_image("rows of pixels of different lengths") from None
    if array.dtype.kind not in "biuf" or array.ndim not in (2, 3) or array.size == 0:
        raise not_an_image(f"shape {list(array.shape)} of {array.dtype}")
    if array.ndim == 2:
        return array
    is_first = place.is_first(array.shape)
    if is_first is None:
        expected = "1, 3 or 4" if place.channels in CHANNELS else place.channels
        raise not_an_image(f"shape {list(array.shape)}; expected {expected} channels")
    return array.transpose(1, 2, 0) if is_first else array


def _as_bytes(array: Any, float_range: float) -> Any:
    if array.dtype == np.uint8:
        return array
    if array.dtype == bool:
        return array.astype(np.uint8) * np.uint8(255)
    if not np.isfinite(array).all():
        raise RowFaultError(NOT_FINITE, "the image contains values that are not finite", "image")
    low, high = array.min(), array.max()
    top: float = 65535 if array.dtype == np.uint16 else 255
    if array.dtype.kind == "f":
        top = float_range or float_range_of(array)
    if low < 0 or high > top:
        raise not_an_image(f"values from {low:g} to {high:g}; expected 0 to {top:g}")
    return np.rint(array * (255 / top)).astype(np.uint8)


def float_range_of(value: Any) -> float:
    """Return the largest value of a floating-point image: 1 or 255; 0 for other values."""
    array = np.asarray(value) if isinstance(value, np.ndarray | list) else None
    if array is None or array.dtype.kind != "f" or array.size == 0:
        return 0
    return 255 if array.max() > 1 else 1


def not_an_image(found: str) -> RowFaultError:
    return RowFaultError(ARRAY_NOT_AN_IMAGE, f"the array is not an image: {found}", "image")


MOST_PIXELS = 1 << 16
"""Larger images are compared by the bytes of their files: to decode each one takes long."""


def image_content(value: Any) -> Any:
    """A hash of the pixels of a small image, else of its file; an array is its own content."""
    inner = unwrapped(value)
    if not isinstance(inner, str | bytes) or not _is_small(inner):
        return file_content(value)
    try:
        image = decode(inner)
    except RowFaultError:  # which encoding reports
        return file_content(value)
    digest = hashlib.blake2b(repr(image.size).encode(), digest_size=16)
    digest.update(image.tobytes())
    return digest.hexdigest()


def _is_small(source: str | bytes) -> bool:
    """Return whether the header of the image names few pixels."""
    from PIL import Image

    if isinstance(source, str) and special_kind(source) is not None:
        return False
    try:
        opened = io.BytesIO(source) if isinstance(source, bytes) else source
        with Image.open(opened, formats=readable_formats()) as image:
            return image.width * image.height <= MOST_PIXELS
    except Exception:  # decoders raise all kinds of errors on damaged bytes
        return False


Planes = npt.NDArray[np.float32]
Floats = TypeVar("Floats", npt.NDArray[np.float32], npt.NDArray[np.float64])

LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""What red, green and blue count in gray, as in Pillow."""
AS_THEY_ARE = -1.0
"""The `float_range` of images that are neither 0 to 1 nor 0 to 255: nothing is scaled."""


def read_values(value: Any, place: ChannelAxis = RGB) -> npt.NDArray[Any]:
    """A file, bytes, `{bytes, path}` or an array as [H, W, C], in its own values and dtype."""
    array = read_image(value, _own_channels, lambda array: array_axes(array, place))
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
