"""Rows mixed with others: mixup blends two rows, cutmix pastes a box of one into the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from surefit.batches.field import Field

Drawn = Mapping[str, Any]
MIXES = ("mixup", "cutmix")
LABELS, SHARE = "mixed_labels", "mixed_share"
"""Columns of a batch of mixed rows: the class of the other row, and the share of the row's own."""
FIELDS = {LABELS: Field((), "int64"), SHARE: Field((), "float32")}


def draw_mix(
    changes: Mapping[str, float], shape: tuple[int, ...], rng: np.random.Generator
) -> dict[str, Any]:
    """Return share of the row itself, and for cutmix the rectangle of the other one; or nothing."""
    names = [name for name in MIXES if name in changes]
    if not names:
        return {}
    name = names[int(rng.integers(len(names)))]
    share = float(rng.beta(changes[name], changes[name]))
    if name == "mixup":
        return {"mixup": share}
    box = draw_box(1 - share, shape[-2:], rng)
    return {"mixup": 1 - box[2] * box[3] / float(shape[-1] * shape[-2]), "cutmix": box}


def mix(
    row: Mapping[str, Any], other: Mapping[str, Any], column: str, drawn: Drawn
) -> dict[str, Any]:
    """Return the row, mixed with the other one as drawn.

    Labels that are numbers are mixed. A class stays, with the class of the other row and the share
    of its own beside it; classes of pixels follow their pixels.
    """
    box, share = drawn.get("cutmix"), drawn["mixup"]
    own, its = np.asarray(row["labels"]), np.asarray(other["labels"])
    mixed = {**row, column: mix_values(row[column], other[column], drawn)}
    if np.issubdtype(own.dtype, np.floating):
        return {**mixed, "labels": _mix(own, its, share).astype(own.dtype)}
    if own.ndim:
        assert box is not None, "a pixel has one class"
        return {**mixed, "labels": _paste(own, its, box)}
    return {**mixed, LABELS: its, SHARE: np.float32(share)}


def mix_values(own: Any, its: Any, drawn: Drawn) -> Any:
    """Return the values of an input, mixed with those of the other row."""
    if "cutmix" in drawn:
        return _paste(own, its, drawn["cutmix"])
    return _mix(own, its, drawn["mixup"])


def _mix(one: Any, other: Any, share: float) -> Any:
    return np.float32(share) * one + np.float32(1 - share) * other


def _paste(one: Any, other: Any, box: tuple[int, int, int, int]) -> Any:
    made, place = one.copy(), (..., *box_slices(box))
    made[place] = other[place]
    return made


def draw_box(
    share: float, size: tuple[int, ...], rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Top, left, height and width of a rectangle with that share of an image, anywhere in it."""
    height, width = (round(float(side * share**0.5)) for side in size)
    top, left = rng.integers(0, size[0] - height + 1), rng.integers(0, size[1] - width + 1)
    return int(top), int(left), height, width


def box_slices(box: tuple[int, int, int, int]) -> tuple[slice, slice]:
    """Return the rows and columns of a rectangle.

    >>> box_slices((1, 2, 3, 4))
    (slice(1, 4, None), slice(2, 6, None))
    """
    top, left, height, width = box
    return slice(top, top + height), slice(left, left + width)
