"""Faults of masks, the classes of pixels; and masks that are only unusual."""

from __future__ import annotations

from typing import Any

import numpy as np
from pictures import disc_rows

from faults.case import Case

ROWS = disc_rows(20)
CONV = """
from torch import nn


def make():
    return nn.Conv2d(3, 2, 3, padding=1)
"""
POOLED = """
from torch import nn


def make():
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
"""


def discs(**changed: Any) -> dict[str, Any]:
    """Images and masks as PNG files; `changed` has masks by number, None for a missing one."""
    files: dict[str, Any] = {}
    for number, row in enumerate(ROWS):
        files[f"d/images/{number}.png"] = row["image"]
        mask = changed.get(f"m{number}", row["mask"])
        if mask is not None:
            files[f"d/masks/{number}.png"] = mask
    return files


def case(title: str, files: dict[str, Any], **options: Any) -> Case:
    return Case(title, files, data="d", module=CONV, **options)


NOTHING = {f"m{n}": ROWS[n]["mask"] * 0 for n in range(8)}
NUMBERS = np.random.default_rng(0)
SHADES = {
    f"m{n}": np.where(
        NUMBERS.random((24, 24)) < 0.95, row["mask"] * 200, NUMBERS.integers(0, 200, (24, 24))
    ).astype(np.uint8)
    for n, row in enumerate(ROWS)
}
BINARY = {f"m{n}": row["mask"] * np.uint8(255) for n, row in enumerate(ROWS)}
IGNORED = {
    f"m{n}": np.where(row["image"][..., 0] % 9, row["mask"], 255) for n, row in enumerate(ROWS)
}


def _renamed(folder: str, new: str, pattern: str) -> dict[str, Any]:
    """The files, with those of a folder under other names in another one."""
    files = {}
    for name, content in discs().items():
        inside, number = name.split("/")[1:]
        stem = number.removesuffix(".png")
        moved = f"d/{new}/{pattern.format(stem)}.png"
        files[moved if inside == folder else name] = content
    return files


CASES = [
    case("SF177 image without its mask", discs(m7=None)),
    case("SF178 mask without its image", discs() | {"d/masks/99.png": ROWS[0]["mask"]}),
    case("SF177 masks of other names", _renamed("masks", "annotations", "{}_b")),
    case(
        "SF178 masks of images that were removed",
        {name: file for name, file in discs().items() if not name.startswith("d/images/1")},
    ),
    case("SF257 mask of another size", discs(m4=ROWS[4]["mask"][:20]), column="mask"),
    case("SF258 mask in colour", discs(m4=ROWS[4]["image"]), column="mask"),
    case("SF258 masks of shades", discs(**SHADES)),
    case("SF205 masks of one class", discs(**{f"m{n}": ROWS[n]["mask"] * 0 for n in range(20)})),
    Case("SF305 one class per image for masks", discs(), data="d", module=POOLED),
]

HEALTHY = [
    case(
        "not SF177 SF178: masks named after their images",
        _renamed("masks", "annotations", "{}_mask"),
    ),
    case("masks of 0 and 255", discs(**BINARY), also=("so 255 is a class",)),
    case("masks of nothing among others", discs(**NOTHING), also=("training masks have",)),
    case("masks with ignored pixels", discs(**IGNORED)),
]
