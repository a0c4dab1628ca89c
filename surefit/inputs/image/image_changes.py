"""Changes of images in training: flips, moves, colours and erased boxes, with the boxes of objects
in them; and images on pages.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import Field
from surefit.data.column_types import CHANNELS
from surefit.errors import UsageError
from surefit.inputs.augment.array_augment import box_slices, draw_box
from surefit.inputs.encoder import Encoder
from surefit.inputs.image.image_files import LUMA
from surefit.inputs.image.object_masks import as_runs, from_runs, object_map

Array = npt.NDArray[Any]
Drawn = Mapping[str, Any]
COLUMN = "pixel_values"
COLOURS = ("brightness", "contrast", "saturation")
MOVES = ("rotate", "crop", "shift")
ASPECTS = (3 / 4, 4 / 3)
"""The range of a crop's aspect ratio, relative to the image's."""


@dataclass(frozen=True)
class ImageChanges:
    """Named changes of images (C, H, W), and how their pixels were normalised."""

    changes: Mapping[str, float]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    high: float | None = 1.0
    """The largest pixel before normalisation, where the smallest is 0; None if neither is known."""
    column: str = COLUMN

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, Any]:
        """Return what happens to one image: a value for each change that takes place."""
        drawn: dict[str, Any] = {}
        for name in ("flip", "flip_vertical"):
            if name in self.changes and rng.random() < self.changes[name]:
                drawn[name] = True
        if "rotate" in self.changes:
            drawn["rotate"] = float(rng.uniform(-1, 1)) * self.changes["rotate"]
        if "crop" in self.changes:
            drawn["crop"] = _draw_crop(self.changes["crop"], rng)
        if "shift" in self.changes:
            drawn["shift"] = tuple((rng.uniform(-1, 1, 2) * self.changes["shift"]).tolist())
        for name in COLOURS:
            if name in self.changes:
                drawn[name] = 1 + float(rng.uniform(-1, 1)) * self.changes[name]
        if "erase" in self.changes:
            drawn["erase"] = draw_box(rng.uniform(0, self.changes["erase"]), shape[-2:], rng)
        return drawn

    def apply(self, row: Mapping[str, Any], drawn: Drawn) -> dict[str, Any]:
        """Return the row with its image changed, and a mask of its pixels moved alike."""
        pixels, labels = row[self.column], row.get("labels")
        moved = {self.column: np.ascontiguousarray(self._recoloured(_move(pixels, drawn), drawn))}
        if "erase" in drawn:
            moved[self.column][(..., *box_slices(drawn["erase"]))] = 0
        if labels is not None and np.ndim(labels) == 2:
            moved["labels"] = _move(labels[None], drawn, nearest=True)[0]
        return {**row, **moved}

    def _recoloured(self, pixels: Array, drawn: Drawn) -> Array:
        if not any(name in drawn for name in COLOURS):
            return pixels.copy()
        plain = self.as_pixels(pixels)
        count = 3 if len(plain) == 4 else len(plain)  # the fourth channel is the opacity
        colours = plain[:count]
        if "brightness" in drawn:
            colours = colours * np.float32(drawn["brightness"])
        if "contrast" in drawn:
            mean = _gray(colours).mean((1, 2), dtype=np.float64)
            colours = _blend(colours, mean[:, None, None], drawn["contrast"])
        if "saturation" in drawn:
            colours = _blend(colours, _gray(colours), drawn["saturation"])
        return self.normalise(np.concatenate([colours, plain[count:]]))

    def as_pixels(self, normal: Array) -> Array:
        """Pixels before normalisation."""
        return normal * _planes(self.std) + _planes(self.mean)

    def normalise(self, pixels: Array) -> Array:
        """Pixels as the model gets them, none beyond the range of pixels."""
        within = pixels if self.high is None else pixels.clip(0, self.high)
        return (within.astype(np.float32) - _planes(self.mean)) / _planes(self.std)

    def picture(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the image of a row for pages, with its mask if it has one: a PNG in base64."""
        return {"png": image_png(row[self.column], self, row.get("labels"))}

    def call_own(self, function: Any, array: Array, rng: np.random.Generator) -> Any:
        """Return a user's own change, which gets pixels before normalisation."""
        made = np.asarray(function(self.as_pixels(array), rng))
        return self.normalise(made) if made.shape == array.shape else made


def _planes(values: tuple[float, ...]) -> Array:
    return np.asarray(values, np.float32)[:, None, None]


def _gray(colours: Array) -> Array:
    return (colours * LUMA[:, None, None]).sum(0, keepdims=True) if len(colours) == 3 else colours


def _blend(colours: Array, other: Any, factor: float) -> Array:
    return np.float32(factor) * colours + np.float32(1 - factor) * np.asarray(other, np.float32)


def _draw_crop(smallest: float, rng: np.random.Generator) -> tuple[float, float, float, float]:
    """Height and width of a crop and the shift of its centre, as shares of the image's."""
    area, aspect = rng.uniform(smallest, 1), np.exp(rng.uniform(*np.log(ASPECTS)))
    height, width = min(1.0, (area / aspect) ** 0.5), min(1.0, (area * aspect) ** 0.5)
    down, right = rng.uniform(-0.5, 0.5, 2)
    return float(height), float(width), float(down * (1 - height)), float(right * (1 - width))


def image_changes(
    changes: Mapping[str, float], encoder: Encoder, fields: Mapping[str, Field]
) -> ImageChanges:
    """Return the changes of images that are read as the Encoder reads them."""
    pixels = encoder.input.pixels
    assert pixels is not None
    if pixels.channels not in (3, 4) and "saturation" in changes:
        count = "one channel" if pixels.channels == 1 else f"{pixels.channels} channels"
        raise UsageError(
            f"image.augment.saturation is set, but images of {count} have no colours.",
            "Leave it out; brightness and contrast change images of any number of channels.",
        )
    high = 255 * pixels.scale if pixels.float_range >= 0 else None
    return ImageChanges(changes, pixels.mean, pixels.std, high)


def _move(planes: Array, drawn: Drawn, nearest: bool = False) -> Array:
    """Planes (C, H, W) after the flips and the moves that were drawn."""
    if drawn.get("flip"):
        planes = planes[..., ::-1]
    if drawn.get("flip_vertical"):
        planes = planes[..., ::-1, :]
    if not any(name in drawn for name in MOVES):
        return planes
    import torch
    from torch.nn.functional import grid_sample

    grid = torch.from_numpy(_grid(drawn, *planes.shape[1:]))[None]
    source = torch.from_numpy(np.array(planes, np.float32, order="C"))[None]
    mode = "nearest" if nearest else "bilinear"
    moved = grid_sample(source, grid, mode, padding_mode="reflection", align_corners=False)
    return np.asarray(moved[0].numpy()).astype(planes.dtype, copy=False)


def _grid(drawn: Drawn, height: int, width: int) -> Array:
    """Return where each pixel of the moved image comes from: (H, W, 2), from -1 to 1.

    Computed number by number: the last bit of a matrix product depends on where its operands are.
    """
    y = (np.arange(height) + 0.5 - height / 2)[:, None]
    x = (np.arange(width) + 0.5 - width / 2)[None, :]
    high, wide, down, right = drawn.get("crop", (1.0, 1.0, 0.0, 0.0))
    lower, further = drawn.get("shift", (0.0, 0.0))
    angle = np.deg2rad(drawn.get("rotate", 0.0))
    y, x = y * high, x * wide
    y, x = y * np.cos(angle) + x * np.sin(angle), x * np.cos(angle) - y * np.sin(angle)
    y, x = y + (down - lower) * height, x + (right - further) * width
    return np.stack([x * 2 / width, y * 2 / height], axis=-1).astype(np.float32)


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
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


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


REFUSED = {
    "rotate": "the box around a turned box is larger than the object in it",
    "shift": "what is shifted in is a reflection of the image, whose objects have no boxes",
    "mixup": "a blended image shows the objects of two images",
    "cutmix": "what is pasted covers objects, and brings others, whose boxes would be cut",
}
"""Changes that boxes cannot follow, and why."""
LEAST_VISIBLE = 0.25
"""Share of a box's area that a crop must keep, or the object has no box any more."""


@dataclass(frozen=True)
class BoxChanges(ImageChanges):
    """Named changes of images (C, H, W), and of the boxes and masks of objects in them."""

    def apply(self, row: Mapping[str, Any], drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row with its image changed, and its boxes moved alike."""
        made = super().apply(row, drawn)
        if "boxes" not in row:
            return made
        size = row[self.column].shape[-2:]
        boxes, kept = move_boxes(row["boxes"], size, drawn)
        if "mask_runs" in row:
            masks = _move(from_runs(row["mask_runs"], len(kept), size), drawn, nearest=True)
            made["mask_runs"] = as_runs(masks[kept])
        return {**made, "boxes": boxes, "box_classes": row["box_classes"][kept]}

    def picture(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the image of a row for pages, with its boxes drawn and its masks in colours."""
        if "boxes" not in row:
            return super().picture(row)
        objects = object_map(row, row[self.column].shape[-2:])
        pixels = draw_boxes(self.as_pixels(row[self.column]), row["boxes"], self.high)
        return super().picture({self.column: self.normalise(pixels), "labels": objects})


def move_boxes(boxes: Any, size: tuple[int, int], drawn: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return boxes after the flips and the crop that were drawn, and which of them are left.

    >>> move_boxes(np.array([[0.0, 0, 2, 4]]), (4, 8), {"flip": True})[0].tolist()
    [[6.0, 0.0, 8.0, 4.0]]
    """
    height, width = size
    moved: Any = np.array(boxes, np.float32)
    if drawn.get("flip"):
        moved[:, [0, 2]] = width - moved[:, [2, 0]]
    if drawn.get("flip_vertical"):
        moved[:, [1, 3]] = height - moved[:, [3, 1]]
    if "crop" not in drawn:
        return moved, np.ones(len(moved), bool)
    high, wide, down, right = drawn["crop"]
    middle = np.array([width, height, width, height], np.float32) / 2
    centre = np.array([right * width, down * height] * 2, np.float32)
    moved = (moved - middle - centre) / np.array([wide, high] * 2, np.float32) + middle
    inside = moved.clip(0, 2 * middle)
    areas = [(each[:, 2:] - each[:, :2]).clip(0).prod(1) for each in (inside, moved)]
    kept = areas[0] >= np.maximum(LEAST_VISIBLE * areas[1], 1e-6)
    return inside[kept], kept


def draw_boxes(pixels: Any, boxes: Any, high: float | None) -> Any:
    """Return pixels (C, H, W) with the edges of boxes in the largest value."""
    drawn, top = np.array(pixels), high if high is not None else float(np.max(pixels))
    height, width = drawn.shape[-2:]
    for left, upper, right, lower in np.round(np.asarray(boxes)).astype(int).tolist():
        x, y = np.clip([left, right - 1], 0, width - 1), np.clip([upper, lower - 1], 0, height - 1)
        drawn[0, y[0] : y[1] + 1, x] = drawn[0, y, x[0] : x[1] + 1] = top
        for other in drawn[1:]:
            other[y[0] : y[1] + 1, x] = other[y, x[0] : x[1] + 1] = 0
    return drawn


def box_changes(
    changes: Mapping[str, float], encoder: Encoder, fields: Mapping[str, Field]
) -> BoxChanges:
    """Return the changes of images whose boxes follow; refuse those that boxes cannot follow."""
    for name, why in REFUSED.items():
        if name in changes:
            raise UsageError(
                f"image.augment.{name} is set, but {why}.",
                "Leave it out; boxes follow flip, flip_vertical and crop, and stay as they are "
                "under brightness, contrast, saturation and erase.",
            )
    plain = image_changes(changes, encoder, fields)
    return BoxChanges(plain.changes, plain.mean, plain.std, plain.high)
