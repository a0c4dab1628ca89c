"""Masks: the class number of each pixel of an image, from files, bytes or arrays."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.data.cell_files import unwrapped
from surefit.findings import rule
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.image.image_files import RGB, ChannelAxis, open_upright, source_of

if TYPE_CHECKING:
    from PIL import Image

MASK_SIZE_DIFFERS = rule(
    "SF257",
    "error",
    "mask of another size than its image",
    why="Each pixel of a mask is the class of the pixel of the image in the same place.",
    fix="Save the mask at the size of its image; or check that the two belong together.",
)

NOT_A_MASK = rule(
    "SF258",
    "error",
    "image that is not a mask",
    why="A mask has one whole number per pixel, its class: a gray or palette PNG, or an array.",
    fix="Save the class numbers as an 8-bit PNG: Image.fromarray(classes.astype('uint8')).save(…).",
)

Mask = npt.NDArray[np.int32]

IGNORED = 255
"""The number of pixels that have no class, as in most data sets."""
MOST_CLASSES = 65_535


def read_mask(value: Any) -> Mask:
    """Return the class numbers (H, W) of a file, bytes, `{bytes, path}` or an array."""
    value = unwrapped(value)
    if isinstance(value, bytes):
        return _with_column(partial(open_upright, io.BytesIO(value), "the mask"))
    if isinstance(value, str):
        return _with_column(lambda read: open_upright(source_of(value), value, read))
    return _from_array(value)


def image_size(value: Any, place: ChannelAxis = RGB) -> tuple[int, int]:
    """Height and width of an image, as `decode` reads it."""
    value = unwrapped(value)
    if isinstance(value, bytes | str):
        source = io.BytesIO(value) if isinstance(value, bytes) else source_of(value)
        width, height = open_upright(source, "the image", lambda image: image.size)
        return height, width
    shape = np.shape(value)
    first = len(shape) == 3 and place.is_first(shape)
    return (shape[1], shape[2]) if first else (shape[0], shape[1])


def check_sizes(mask: Mask, image: Any, place: ChannelAxis = RGB) -> None:
    """Refuse a mask that has not the size of its image."""
    size = image_size(image, place)
    if mask.shape != size:
        found = " × ".join(map(str, mask.shape))
        message = f"the mask is {found} pixels, its image {size[0]} × {size[1]}"
        raise RowFaultError(MASK_SIZE_DIFFERS, message, "label")


def mask_as_png(mask: Any) -> bytes:
    """Class numbers (H, W) as a gray PNG, of 8 bits or 16."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(mask).save(file, "PNG")
    return file.getvalue()


def _with_column(opened: Callable[[Callable[[Image.Image], Mask]], Mask]) -> Mask:
    """Return the class numbers of a file; its faults name the column of masks."""
    try:
        mask = opened(_class_numbers)
    except RowFaultError as fault:
        raise RowFaultError(fault.rule, fault.message, "label", fault.fix) from None
    return mask


def _class_numbers(image: Image.Image) -> Mask:
    """Return the numbers of a gray or palette image; gray ones saved as RGB count, too."""
    if "jfif" in image.info or "adobe" in image.info:
        raise _no_mask("a JPEG, whose compression changes the class numbers")
    pixels = np.asarray(image)
    if image.mode in ("RGB", "RGBA"):
        colours = pixels[..., :3]
        if (colours != colours[..., :1]).any():
            raise _no_mask("in colour; expected a class number per pixel, gray or as a palette")
        return colours[..., 0].astype(np.int32)
    if image.mode not in ("1", "L", "P", "I", "I;16", "I;16B", "I;16L"):
        raise _no_mask(f"an image of the mode {image.mode}")
    return _from_array(pixels)


def _from_array(value: Any) -> Mask:
    try:
        array = np.asarray(value)
    except ValueError:
        raise _no_mask("rows of different lengths") from None
    if array.ndim == 3 and 1 in (array.shape[0], array.shape[2]):
        array = array[0] if array.shape[0] == 1 else array[..., 0]
    if array.ndim != 2 or array.dtype.kind not in "biuf" or array.size == 0:
        raise _no_mask(f"of shape {list(array.shape)} and {array.dtype}; expected [height, width]")
    if array.dtype.kind == "f" and (not np.isfinite(array).all() or (array % 1).any()):
        raise _no_mask("of fractions; expected whole numbers")
    if array.min() < 0 or array.max() > MOST_CLASSES:
        raise _no_mask(
            f"of numbers from {array.min():g} to {array.max():g}; expected 0 to {MOST_CLASSES}"
        )
    return array.astype(np.int32)


def _no_mask(what: str) -> RowFaultError:
    return RowFaultError(NOT_A_MASK, f"the mask is {what}", "label")
