"""Two folders beside each other, of images and of their masks, which have the same names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from surefit.config import Reading
from surefit.data.file_kinds import IMAGES as IMAGES_BY_ENDING
from surefit.data.formats.opened import Opened
from surefit.findings import Finding, rule

IMAGE_WITHOUT_MASK = rule(
    "SF177",
    "error",
    "image without a mask",
    why="Its pixels have no classes, so that it cannot be trained on or evaluated.",
    fix="Draw the missing masks, give them the names of their images, or remove the images.",
)

MASK_WITHOUT_IMAGE = rule(
    "SF178",
    "warning",
    "mask without an image",
    why="A mask is read beside the image of the same name; these are not read.",
    fix="Add the images, or remove the masks.",
    accept="The masks are not read.",
)

IMAGES = frozenset(("images", "image", "imgs", "img", "jpegimages"))
MASKS = frozenset(("masks", "mask", "labels", "annotations", "segmentationclass", "segmentations"))
"""What such folders are called, in lower case."""
ENDS = ("", "_mask", "-mask", "_label", "_seg")
"""What the names of masks may have behind those of their images."""
SHOWN = 3


def find_pair(path: Path) -> tuple[Path, Path] | None:
    """The folders of images and of masks, if a folder has these two and no other."""
    inside = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith((".", "_")))
    images = [folder for folder in inside if folder.name.lower() in IMAGES]
    masks = [folder for folder in inside if folder.name.lower() in MASKS]
    if len(inside) != 2 or len(images) != 1 or len(masks) != 1:
        return None
    return images[0], masks[0]


def open_pairs(path: Path, reading: Reading) -> Opened:
    """Columns `image` and `mask` with the paths of files, sorted by name."""
    pair = find_pair(path.resolve())
    assert pair is not None
    images, masks = (_by_name(folder) for folder in pair)
    masks = {_image_of(name, images): file for name, file in masks.items()}
    missing = [str(file) for name, file in images.items() if name not in masks]
    if missing:
        raise IMAGE_WITHOUT_MASK.error(
            f"{len(missing)} of {len(images)} images in {pair[0]} have no mask of the same name in "
            f"{pair[1]}: {_some(missing)}.",
            file=missing[0],
        )
    unused = [str(file) for name, file in masks.items() if name not in images]
    found: list[Finding] = []
    if unused:
        message = f"{len(unused)} masks in {pair[1]} have no image: {_some(unused)}."
        found.append(MASK_WITHOUT_IMAGE.finding(message, file=unused[0]))
    columns = {
        "image": [str(file) for file in images.values()],
        "mask": [str(masks[name]) for name in images],
    }
    return Opened(pa.table({n: pa.array(v, pa.string()) for n, v in columns.items()}), tuple(found))


def _by_name(folder: Path) -> dict[str, Path]:
    """The images in a folder, at any depth, by their path in it without the ending."""
    files = sorted(file for file in folder.rglob("*") if IMAGES_BY_ENDING.has(file))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def _image_of(name: str, images: Mapping[str, Path]) -> str:
    """The name of the image that a mask belongs to; its own if there is none."""
    ends = (end for end in ENDS if name.endswith(end) and name.removesuffix(end) in images)
    return name.removesuffix(next(ends, ""))


def _some(files: list[str]) -> str:
    names = [Path(file).name for file in files[:SHOWN]]
    return ", ".join(names) + (" …" if len(files) > SHOWN else "")
