"""Boxes of objects in an image: their formats, what may be wrong with them, pixels as corners.

A box is four numbers: two corners (`xyxy`), a corner and a size (`xywh`, as COCO has them), or a
centre and a size (`cxcywh`, as YOLO has them). They are pixels, or shares of the image's sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import IGNORE_INDEX
from surefit.config import set_option
from surefit.data.data_rules import NOT_FINITE, WRONG_SHAPE
from surefit.findings import Finding, note, rule
from surefit.inputs.encoded_row import RowFaultError
from surefit.inputs.encoder_state import BoxFormat
from surefit.inputs.image.object_masks import from_runs

if TYPE_CHECKING:
    import torch

Boxes = npt.NDArray[np.float64]
"""(N, 4)."""

BOX_WITHOUT_AREA = rule(
    "SF340",
    "error",
    "box without an area",
    why="A module would compute a loss that is not finite, or refuse the batch: its second corner "
    "must lie right of and below the first.",
    fix="Correct or delete the box; if all boxes are of another format, name it with box_format.",
)

BOX_OUTSIDE = rule(
    "SF341",
    "error",
    "box outside its image",
    why="Nothing of the object is in the image: the box belongs to another image or another size "
    "of it, or the format of boxes is misread.",
    fix="Correct or delete the box; if all boxes are of another format, name it with box_format.",
)

BOX_CLIPPED = rule(
    "SF342",
    "warning",
    "boxes that reach beyond their images",
    why="What lies outside cannot be seen; or the boxes are those of an image of another size.",
    fix="Nothing to do if the objects are cut off by the edge; else correct the boxes.",
    accept="The boxes are clipped at the edge.",
)

REPEATED_BOX = rule(
    "SF343",
    "warning",
    "the same box twice in an image",
    why="An object annotated twice counts twice: a model that finds it once misses one.",
    fix="Delete the copies.",
    accept="The copies are trained on.",
)

ORDERS = ("xyxy", "xywh", "cxcywh")
CLIPPED_PIXELS = 1.0
"""Boxes that reach so little beyond the edge are rounded."""
SHARES_UP_TO = 1.01
"""Coordinates that are shares of the sides; rounded ones may be a little above 1."""
USUAL = 0.95
"""The share of boxes that a format must explain to be the likeliest one at once."""


def as_boxes(value: Any) -> Boxes:
    """Return the boxes of a row as an array; none of an empty list.

    >>> as_boxes([[0, 0, 4, 2]]).tolist(), as_boxes([]).shape
    ([[0.0, 0.0, 4.0, 2.0]], (0, 4))
    """
    try:
        made = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        message = "the boxes are not lists of four numbers each"
        raise RowFaultError(WRONG_SHAPE, message, "boxes") from None
    if not made.size:
        return np.zeros((0, 4))
    if made.ndim != 2 or made.shape[1] != 4:
        message = f"the boxes have shape {list(made.shape)}; expected four numbers for each box"
        raise RowFaultError(WRONG_SHAPE, message, "boxes", "Write each box as four numbers.")
    if not np.isfinite(made).all():
        place = int(np.flatnonzero(~np.isfinite(made).all(1))[0])
        message = f"box {place} is {_shown(made[place])}"
        raise RowFaultError(NOT_FINITE, message, "boxes")
    return made


def to_corners(boxes: Boxes, order: str) -> Boxes:
    """Return boxes of one format as corners.

    >>> to_corners(np.array([[4.0, 3.0, 2.0, 2.0]]), "cxcywh").tolist()
    [[3.0, 2.0, 5.0, 4.0]]
    """
    if order == "xyxy":
        return boxes
    first, size = boxes[:, :2], boxes[:, 2:]
    start = first if order == "xywh" else first - size / 2
    return np.concatenate([start, start + size], axis=1)


def check_corners(
    boxes: Boxes, classes: npt.NDArray[Any], given: Boxes, size: tuple[int, int], order: str
) -> tuple[Boxes, tuple[RowFaultError, ...]]:
    """Return boxes (corners in pixels) within an image of this height and width, and what a row
    is warned of; raise what is wrong with one. `given` are the boxes as the data has them.
    """
    height, width = size
    flat = np.flatnonzero((boxes[:, 2:] <= boxes[:, :2]).any(1))
    if len(flat):
        at = int(flat[0])
        what = "its second corner is not right of and below the first" if order == "xyxy" else ""
        what = what or "its width or its height is not above 0"
        message = f"box {at} is {_shown(given[at])}, read as {order}: {what}"
        raise RowFaultError(BOX_WITHOUT_AREA, message, "boxes", _other_format(given[at], order))
    edge = np.array([width, height, width, height], np.float64)
    inside = boxes.clip(0, edge)
    outside = np.flatnonzero((inside[:, 2:] <= inside[:, :2]).any(1))
    if len(outside):
        at = int(outside[0])
        message = (
            f"box {at} is {_shown(given[at])}, read as {order}: it lies outside the image of "
            f"{width} × {height} pixels (width × height)"
        )
        raise RowFaultError(BOX_OUTSIDE, message, "boxes")
    found = []
    if np.abs(inside - boxes).max(initial=0.0) > CLIPPED_PIXELS:
        message = "boxes reach beyond the image and are clipped at its edge"
        found.append(RowFaultError(BOX_CLIPPED, message, "boxes", counted=True))
    whole = np.concatenate([boxes, classes[:, None]], axis=1)
    if len(np.unique(whole, axis=0)) < len(whole):
        message = "a box of one class is there twice"
        found.append(RowFaultError(REPEATED_BOX, message, "boxes", counted=True))
    return inside, tuple(found)


def _other_format(box: Boxes, order: str) -> str:
    """Return how to correct a box without an area: its corners may be exchanged."""
    if order == "xyxy" and (box[2:] > 0).all():
        named = set_option("box_format", "xywh")
        return f"Correct or delete the box; if all boxes are a corner and a size: {named}."
    return BOX_WITHOUT_AREA.fix


def _shown(box: Boxes) -> str:
    return f"[{', '.join(f'{number:g}' for number in box)}]"


@dataclass
class BoxSample:
    """The boxes of the training rows, counted by the formats that would explain them."""

    column: str
    asked: str | None = None
    """The format that the user names."""
    boxes: int = 0
    shares: int = 0
    """Boxes whose numbers may be shares of the image's sides."""
    suits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ORDERS, 0))
    """Boxes that have an area and, where they are shares, are inside the image."""
    without: int = 0
    rows: int = 0

    def add(self, boxes: Boxes) -> None:
        """Count the boxes of a row."""
        self.rows, self.boxes = self.rows + 1, self.boxes + len(boxes)
        self.without += not len(boxes)
        are_shares = (np.abs(boxes) <= SHARES_UP_TO).all(1)
        self.shares += int(are_shares.sum())
        for order in ORDERS:
            corners = to_corners(boxes, order)
            good = (corners[:, 2:] > corners[:, :2]).all(1)
            within = (corners > 1 - SHARES_UP_TO).all(1) & (corners < SHARES_UP_TO).all(1)
            self.suits[order] += int((good & (within | ~are_shares)).sum())

    def fitted(self) -> BoxFormat:
        """Return the format: named by the user or the column, else the likeliest."""
        relative = 2 * self.shares > self.boxes
        ending = self.column.lower().rpartition("_")[2]
        named = self.asked or (ending if ending in ORDERS else None)
        if named is not None:
            return BoxFormat(named, relative)
        # Shares are mostly YOLO's; of pixels, COCO's boxes are a corner and a size.
        likely = ("xyxy", "cxcywh", "xywh") if relative else ("xyxy", "xywh")
        if self.suits["xyxy"] >= USUAL * self.boxes:
            return BoxFormat("xyxy", relative)
        return BoxFormat(max(likely, key=lambda order: self.suits[order]), relative)

    def findings(self, form: BoxFormat) -> Iterable[Finding]:
        """Yield how boxes are read, and how many images have none."""
        unit = "shares of the image's sides" if form.relative else "pixels"
        how = "named" if self.asked else f"{self.suits[form.order]:,} of {self.boxes:,} suit it"
        meaning = {
            "xyxy": "two corners",
            "xywh": "a corner, width and height",
            "cxcywh": "the centre, width and height",
        }[form.order]
        yield note(
            f"column {self.column!r}: boxes are read as {form.order} ({meaning}) in {unit}: {how}.",
            fix=f"If they are not: {set_option('box_format', ORDERS[form.order == ORDERS[0]])}",
            column=self.column,
        )
        if self.without:
            message = (
                f"column {self.column!r}: {self.without:,} of {self.rows:,} training images have "
                "no box; they are trained on as background."
            )
            yield note(message, column=self.column)


def scaled(boxes: Boxes, wide: float, high: float) -> Boxes:
    """Return corners in an image whose width and height are multiplied.

    >>> scaled(np.array([[1.0, 1.0, 2.0, 2.0]]), 2, 3).tolist()
    [[2.0, 3.0, 4.0, 6.0]]
    """
    made: Boxes = boxes * np.array([wide, high, wide, high], np.float64)
    return made


def split_targets(batch: Mapping[str, Any]) -> list[dict[str, torch.Tensor]]:
    """Return the boxes, classes and masks of each image of a batch, without padding.

    >>> import torch
    >>> classes = torch.tensor([[1, IGNORE_INDEX]])
    >>> split_targets({"boxes": torch.zeros(1, 2, 4), "box_classes": classes})[0]["labels"]
    tensor([1])
    """
    import torch

    found = []
    for place, (boxes, classes) in enumerate(
        zip(batch["boxes"], batch["box_classes"], strict=True)
    ):
        known = classes != IGNORE_INDEX
        found.append({"boxes": boxes[known], "labels": classes[known]})
        if "mask_runs" in batch:
            runs, size = batch["mask_runs"][place].cpu(), tuple(batch["pixel_values"].shape[-2:])
            masks = torch.from_numpy(from_runs(runs, len(found[-1]["boxes"]), size))
            found[-1]["masks"] = masks.to(boxes.device)
    return found
