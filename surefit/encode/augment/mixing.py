"""mixup and cutmix: a training row mixed with another one, and with its label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from surefit.batches.field import Field
from surefit.encode.augment.image_changes import box_slices, draw_box

Drawn = Mapping[str, Any]

MIXES = ("mixup", "cutmix")
LABELS, SHARE = "mixed_labels", "mixed_share"
"""Columns of a batch of mixed rows: the class of the other row, and the share of the row's own."""
FIELDS = {LABELS: Field((), "int64"), SHARE: Field((), "float32")}


def draw_mix(
    changes: Mapping[str, float], shape: tuple[int, ...], rng: np.random.Generator
) -> dict[str, Any]:
    """The share of the row itself, and for cutmix the rectangle of the other one; or nothing."""
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
    """The row, mixed with the other one as drawn.

    Labels that are numbers are mixed. A class stays, with the class of the other row and the share
    of its own beside it; classes of pixels follow their pixels.
    """
    box, share = drawn.get("cutmix"), drawn["mixup"]
    own, its = np.asarray(row["labels"]), np.asarray(other["labels"])
    mixed = {**row, column: mix_values(row[column], other[column], drawn)}
    if np.issubdtype(own.dtype, np.floating):
        return {**mixed, "labels": _blend(own, its, share).astype(own.dtype)}
    if own.ndim:
        assert box is not None, "a pixel has one class"
        return {**mixed, "labels": _paste(own, its, box)}
    return {**mixed, LABELS: its, SHARE: np.float32(share)}


def mix_values(own: Any, its: Any, drawn: Drawn) -> Any:
    """The values of an input, mixed with those of the other row."""
    if "cutmix" in drawn:
        return _paste(own, its, drawn["cutmix"])
    return _blend(own, its, drawn["mixup"])


def _blend(one: Any, other: Any, share: float) -> Any:
    return np.float32(share) * one + np.float32(1 - share) * other


def _paste(one: Any, other: Any, box: tuple[int, int, int, int]) -> Any:
    made, place = one.copy(), (..., *box_slices(box))
    made[place] = other[place]
    return made


def describe_mix(drawn: Drawn) -> Iterator[str]:
    """What was drawn for a mixed row, in words."""
    if "mixup" in drawn:
        how = "replaced by" if "cutmix" in drawn else "blended with"
        yield f"{1 - drawn['mixup']:.0%} {how} row {drawn['partner']}"
