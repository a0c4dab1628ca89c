"""Masks of objects in an image: polygons or pixels of the data, run lengths on disk, pixels again.

An object has a list of polygons, each `[x, y, x, y, …]` in the unit of the boxes (as COCO and YOLO
have them), or a mask `[height, width]` of 0 and 1. Encoded, the masks of a row are the lengths of
runs of 0 and 1 by turns, row by row of the image and object after object; each object begins with a
run of 0 and has an even number of runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.data.data_rules import WRONG_SHAPE
from surefit.findings import rule
from surefit.inputs.encoded_row import RowFaultError

if TYPE_CHECKING:
    import torch

Masks = npt.NDArray[np.bool_]
"""(N, H, W)."""
Size = tuple[int, int]
"""Height and width."""

MASK_OUTSIDE_BOX = rule(
    "SF345",
    "warning",
    "masks without a pixel in their box",
    why="The mask belongs to another object, or is smaller than a pixel at the size of the images.",
    fix="Give masks, boxes and classes in one order; for small objects: --set image.size=SIDE.",
    accept="They are trained on as they are.",
)


def read_masks(value: Any, size: Size, wanted: Size, relative: bool) -> Masks:
    """Return the masks of a row at the wanted size; those of the data are of an image of `size`.

    >>> read_masks([[[0, 0, 2, 0, 2, 1, 0, 1]]], (2, 4), (2, 4), False).astype(int).tolist()
    [[[1, 1, 0, 0], [0, 0, 0, 0]]]
    """
    made = np.zeros((len(value), *wanted), bool)
    scale = np.array([wanted[1], wanted[0]]) / (1 if relative else np.array([size[1], size[0]]))
    for place, parts in enumerate(value):
        try:
            pixels = np.asarray(parts)
        except ValueError:  # polygons of several lengths
            pixels = np.empty(0)
        if pixels.shape == size:
            made[place] = resized(pixels != 0, wanted)
            continue
        if pixels.ndim == 2 and len(pixels) > 2 and not relative and pixels.max() <= 1:
            message = f"mask {place} has shape {list(pixels.shape)}, its image {list(size)}"
            raise RowFaultError(WRONG_SHAPE, message, "masks")
        for part in parts:
            corners = np.asarray(part, np.float64)
            if corners.ndim != 1 or len(corners) < 6 or len(corners) % 2:
                message = f"mask {place}: a polygon is x, y of at least three corners in one list"
                raise RowFaultError(WRONG_SHAPE, message, "masks")
            fill(made[place], corners.reshape(-1, 2) * scale)
    return made


def fill(mask: npt.NDArray[np.bool_], corners: npt.NDArray[np.float64]) -> None:
    """Set the pixels of a mask (H, W) whose centre is in a polygon, in place."""
    height, width = mask.shape
    turns = np.zeros((height, width + 1), np.int64)
    for (x, y), (right, lower) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        first, last = (int(np.ceil(each - 0.5)) for each in sorted((y, lower)))
        rows = np.arange(max(first, 0), min(last, height))
        if len(rows):
            crossed = x + (rows + 0.5 - y) * (right - x) / (lower - y)
            np.add.at(turns, (rows, np.ceil(crossed - 0.5).clip(0, width).astype(int)), 1)
    mask |= turns.cumsum(1)[:, :width] % 2 == 1


def resized(masks: Masks, wanted: Size) -> Masks:
    """Return masks (…, H, W) with the nearest pixel of each place at another size."""
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(int)
        for old, new in zip(masks.shape[-2:], wanted, strict=True)
    )
    return masks[..., rows[:, None], columns]


def as_runs(masks: Masks) -> npt.NDArray[np.int32]:
    """Return the lengths of the runs of masks.

    >>> as_runs(np.array([[[True, True], [False, True]], [[False, True], [True, False]]])).tolist()
    [0, 2, 1, 1, 1, 2, 1, 0]
    """
    runs = []
    for flat in map(np.ravel, masks):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], flat]))).tolist()
        lengths = np.diff([0, *edges, flat.size]).tolist()
        runs += lengths + [0] * (len(lengths) % 2)
    return np.array(runs, np.int32)


def from_runs(runs: Any, count: int, size: Size) -> Masks:
    """Return the masks (N, H, W) of runs; padding with 0 adds nothing.

    >>> from_runs([0, 2, 1, 1, 0], 1, (2, 2)).astype(int).tolist()
    [[[1, 1], [0, 1]]]
    """
    lengths = np.asarray(runs)
    return np.repeat(np.arange(len(lengths)) % 2 == 1, lengths).reshape(count, *size)


def check_masks(masks: Masks, boxes: npt.NDArray[Any]) -> list[RowFaultError]:
    """Return what a row is warned of; boxes are corners in the pixels of the masks."""
    for place, (mask, corners) in enumerate(zip(masks, boxes, strict=True)):
        (left, upper), (right, lower) = np.floor(corners[:2]), np.ceil(corners[2:])
        if not mask[int(upper) : int(lower), int(left) : int(right)].any():
            message = f"the mask of box {place} has no pixel in it"
            return [RowFaultError(MASK_OUTSIDE_BOX, message, "masks", counted=True)]
    return []


def mask_overlaps(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the intersection over union of masks (N, H, W) and (M, H, W): (N, M)."""
    import torch

    made = torch.zeros(len(one), len(other), dtype=torch.float64)
    for place, mask in enumerate(other):
        both, either = (one & mask).sum((1, 2)), (one | mask).sum((1, 2))
        made[:, place] = both / either.clamp(min=1)
    return made


def as_coco(mask: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Return a mask (H, W) as COCO's run lengths, column by column.

    >>> as_coco(np.array([[True, False], [True, True]]))
    {'size': [2, 2], 'counts': [0, 2, 1, 1]}
    """
    runs = as_runs(mask.T[None]).tolist()
    return {"size": list(mask.shape), "counts": runs[:-1] if runs[-1] == 0 else runs}


def object_map(row: Mapping[str, Any], size: Size) -> npt.NDArray[Any] | None:
    """Return the number of the object that each pixel of a row belongs to, from 1 on, and 0 of the
    others; None for rows without masks."""
    if "mask_runs" not in row:
        return None
    masks = from_runs(row["mask_runs"], len(row["boxes"]), size)
    made: npt.NDArray[Any] = np.zeros(size, np.int64)
    for number, mask in enumerate(masks, start=1):
        made[mask] = number
    return made
