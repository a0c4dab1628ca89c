"""Images as the report shows them: small, with their masks drawn over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.data.column_types import CHANNELS
from surefit.encode.augment.image_changes import ImageChanges
from surefit.encode.images.mask_files import image_as_png, png_as_text

Array = npt.NDArray[Any]

MAX_SIDE = 64
"""Pixels of the longer side of an image that is shown."""
OPACITY = 0.5
"""Of the colours of classes over an image."""
PALETTE = np.array(
    [(255, 60, 40), (40, 130, 255), (50, 200, 80), (255, 200, 30), (190, 80, 220), (40, 210, 210)]
)
"""Colours of the classes but the first, which is shown as it is."""


def image_png(normal: Array, form: ImageChanges, classes: Any = None) -> str:
    """Pixel values (C, H, W) as PNG in base64; `classes` of pixels (H, W) colour them.

    Of images that are neither gray nor RGB nor RGBA, the first channels are shown.
    """
    from PIL import Image

    pixels = form.as_pixels(normal)
    shown = pixels if len(pixels) in CHANNELS else pixels[: 3 if len(pixels) > 3 else 1]
    levels = _levels(shown, form.high)
    if classes is not None and np.ndim(classes) == 2:
        levels = _coloured(levels, np.asarray(classes))
    image = Image.fromarray(levels[0] if len(levels) == 1 else levels.transpose(1, 2, 0))
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    return png_as_text(image_as_png(image))


def _levels(pixels: Array, high: float | None) -> Array:
    """Pixels as 0 to 255; without a known range, from their least to their most."""
    low = 0.0 if high is not None else float(pixels.min())
    top = high if high is not None else max(float(pixels.max()), low + 1e-6)
    return ((pixels - low) / (top - low) * 255).clip(0, 255).round().astype(np.uint8)


def _coloured(levels: Array, classes: Array) -> Array:
    colours = levels[:3] if len(levels) >= 3 else np.repeat(levels[:1], 3, axis=0)
    over = PALETTE[(classes - 1) % len(PALETTE)].transpose(2, 0, 1)
    mixed = (1 - OPACITY) * colours + OPACITY * over
    return np.where(classes > 0, mixed, colours).astype(np.uint8)
