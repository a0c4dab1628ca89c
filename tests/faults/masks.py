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


def case(name: str, code: str | None, files: dict[str, Any], **options: Any) -> Case:
    return Case(name, code, files, data="d", module=CONV, **options)


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
    case("image without its mask", "SF177", discs(m7=None)),
    case("mask without its image", "SF178", discs() | {"d/masks/99.png": ROWS[0]["mask"]}),
    case("masks of other names", "SF177", _renamed("masks", "annotations", "{}_b")),
    case(
        "masks of images that were removed",
        "SF178",
        {name: file for name, file in discs().items() if not name.startswith("d/images/1")},
    ),
    case("mask of another size", "SF257", discs(m4=ROWS[4]["mask"][:20]), column="mask"),
    case("mask in colour", "SF258", discs(m4=ROWS[4]["image"]), column="mask"),
    case("masks of shades", "SF258", discs(**SHADES)),
    case("masks of one class", "SF205", discs(**{f"m{n}": ROWS[n]["mask"] * 0 for n in range(20)})),
    Case("one class per image for masks", "SF305", discs(), data="d", module=POOLED),
]

HEALTHY = [
    case("masks named after their images", None, _renamed("masks", "annotations", "{}_mask")),
    case("masks of 0 and 255", None, discs(**BINARY), also=("SF260",)),
    case("masks of nothing among others", None, discs(**NOTHING), also=("training masks have",)),
    case("masks with ignored pixels", None, discs(**IGNORED)),
]
