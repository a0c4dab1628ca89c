"""Changes of images with boxes: what is moved in the image is moved in the boxes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from surefit.batches.field import Field
from surefit.errors import UsageError
from surefit.inputs.encoder import Encoder
from surefit.inputs.image.image_changes import ImageChanges, image_changes

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
    """Named changes of images (C, H, W) and of the boxes in them."""

    def apply(self, row: Mapping[str, Any], drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row with its image changed, and its boxes moved alike."""
        made = super().apply(row, drawn)
        if "boxes" not in row:
            return made
        boxes, kept = move_boxes(row["boxes"], row[self.column].shape[-2:], drawn)
        return {**made, "boxes": boxes, "box_classes": row["box_classes"][kept]}

    def picture(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the image of a row for pages, with its boxes drawn."""
        if "boxes" not in row:
            return super().picture(row)
        pixels = draw_boxes(self.as_pixels(row[self.column]), row["boxes"], self.high)
        return super().picture({self.column: self.normalise(pixels)})


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
