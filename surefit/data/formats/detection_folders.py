"""Annotated images as COCO and YOLO have them: columns `image`, boxes, `labels` and `masks`.

COCO is a JSON file with `images`, `annotations` and `categories`, beside a folder of images. YOLO
is a folder `images` beside a folder `labels`, which has a text file for each image.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel

from surefit.config import Reading
from surefit.core.foreign import read_json, read_yaml
from surefit.data.cache import fingerprint
from surefit.data.cache_entry import content_hashes
from surefit.data.cell_files import IMAGES
from surefit.data.formats.opened import Opened, bad_file, bad_line
from surefit.data.official_splits import Splits, find_splits, folder_splits
from surefit.errors import UsageError
from surefit.findings import Finding, note

COCO_KEYS = (b'"images"', b'"annotations"', b'"categories"')
NAME_FILES = ("data.yaml", "data.yml", "dataset.yaml", "classes.txt", "obj.names")
"""Files with the names of YOLO's classes, in the folder of the data set."""
LOOKED_AT_FILES = 32
PARENTS = 3
"""How far above the images the names of the classes may be."""
BOXES = pa.list_(pa.list_(pa.float64()))
MASKS = pa.list_(BOXES)
"""Of each object a list of polygons."""


Number = int | str


@dataclass(frozen=True)
class _CocoImage:
    id: Number
    file_name: str


@dataclass(frozen=True)
class _CocoCategory:
    id: Number
    name: str


@dataclass(frozen=True)
class _CocoRuns:
    size: list[int]
    counts: list[int] | str


@dataclass(frozen=True)
class _CocoAnnotation:
    id: Number | None = None
    image_id: Number | None = None
    category_id: Number | None = None
    bbox: list[float] | None = None
    segmentation: list[list[float]] | _CocoRuns | None = None
    iscrowd: int = 0


@dataclass(frozen=True)
class _Coco:
    """What is read of a file of COCO; its other keys are ignored."""

    images: list[_CocoImage]
    categories: list[_CocoCategory]
    annotations: list[_CocoAnnotation]


class _Names(BaseModel):
    """What is read of a file of YOLO; its other keys are ignored."""

    names: list[str | int | float | bool] | dict[int | str, str | int | float | bool] | None = None


def is_coco(path: Path) -> bool:
    """Return whether a JSON file has the keys of COCO's annotations of boxes."""
    if path.suffix.lower() != ".json" or not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if not content[:64].lstrip().startswith(b"{"):
            return False
        return all(content.find(key) >= 0 for key in (*COCO_KEYS, b'"bbox"'))


def open_coco(path: Path, reading: Reading) -> Opened:
    """Return a row for each image, with the boxes and class names of its annotations."""
    try:
        held = read_json(path, _Coco)
    except UsageError as error:
        raise bad_file(path, f" has no COCO annotations: {error.message}") from None
    images = {image.id: image.file_name for image in held.images}
    names = {each.id: each.name for each in held.categories}
    boxes: dict[Any, list[Any]] = {number: [] for number in images}
    labels: dict[Any, list[str]] = {number: [] for number in images}
    masks: dict[Any, list[Any]] = {number: [] for number in images}
    crowds = 0
    for place, each in enumerate(held.annotations):
        if each.iscrowd:
            crowds += 1
            continue
        image, category, box = each.image_id, each.category_id, each.bbox
        if image not in images or category not in names or box is None:
            part = "image" if image not in images else "category"
            number = image if part == "image" else category
            fault = "no bbox" if box is None else f"the {part}_id {number!r} is not there"
            raise bad_file(path, f": annotation {place} (id {each.id!r}): {fault}.")
        boxes[image].append(box)
        labels[image].append(names[category])
        shape = each.segmentation
        if isinstance(shape, _CocoRuns):
            shape = polygons_of_runs(shape.size, shape.counts)
        masks[image].append(shape)
    root = _image_root(path, next(iter(images.values()), ""))
    found = [note(f"{path.name} is read as COCO; its images are in {root}.", file=str(path))]
    if crowds:
        message = f"{path.name}: {crowds} annotations of crowds (iscrowd) are left out."
        found.append(note(message, file=str(path)))
    return _opened(
        [str(root / name) for name in images.values()],
        boxes.values(),
        labels.values(),
        masks.values(),
        "boxes_xywh",
        found,
    )


def polygons_of_runs(size: Sequence[int], counts: Sequence[int] | str) -> list[list[float]]:
    """Return COCO's run lengths as polygons: a rectangle for each run within a column.

    >>> polygons_of_runs([2, 2], [1, 2, 1])
    [[0, 1, 1, 1, 1, 2, 0, 2], [1, 0, 2, 0, 2, 1, 1, 1]]
    """
    height, ends = size[0], np.cumsum(_uncompressed(counts) if isinstance(counts, str) else counts)
    found: list[list[float]] = []
    for start, end in zip(ends[::2].tolist(), ends[1::2].tolist(), strict=False):
        for x in range(start // height, -(-end // height)):
            upper, lower = max(start - x * height, 0), min(end - x * height, height)
            found.append([x, upper, x + 1, upper, x + 1, lower, x, lower])
    return found


def _uncompressed(text: str) -> list[int]:
    """Return the run lengths that COCO's tools write as text: 5 bits per character, and from the
    fourth number on the difference to the last but one."""
    counts: list[int] = []
    value = shift = 0
    for bits in (ord(each) - 48 for each in text):
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            value -= (1 << shift) if bits & 16 else 0
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    return counts


def _image_root(path: Path, name: str) -> Path:
    """Return the folder that the names of the images start from."""
    stem = path.stem.removeprefix("instances_")
    folder = path.resolve().parent
    above = folder.parent
    places = [folder, folder / "images", above / "images", above / "images" / stem, above / stem]
    places += [above, folder / stem]
    return next((place for place in places if os.path.isfile(place / name)), folder)


def coco_files(folder: Path) -> list[Path]:
    """Return the annotations in a folder, or in its folder `annotations`; those of instances, if
    there are others beside them."""
    found = [
        file
        for place in (folder, folder / "annotations")
        if place.is_dir()
        for file in sorted(place.glob("*.json"))
        if is_coco(file)
    ]
    return [file for file in found if file.name.startswith("instances")] or found


def labels_of(images: Path) -> Path | None:
    """Return the folder of YOLO's text files for a folder of images; None if it has none.

    It has `labels` in its path where that of the images has `images`.
    """
    parts = images.resolve().parts
    at = next((n for n in range(len(parts) - 1, -1, -1) if parts[n].lower() == "images"), None)
    if at is None:
        return None
    labels = Path(*parts[:at], "labels", *parts[at + 1 :])
    files = sorted(labels.glob("*.txt"))[:LOOKED_AT_FILES] if labels.is_dir() else []
    for file in files:  # the first line is a class number and a box or a polygon
        with file.open(encoding="utf-8", errors="replace") as lines:
            cells = next(lines, "").split()
        if len(cells) >= 5 and cells[0].isdecimal() and _numbers(cells[1:]) is not None:
            return labels
    return None


def annotated(folder: Path) -> list[Path] | Splits | None:
    """Return what is opened of a folder of annotated images: files of COCO or folders of images of
    YOLO, by part where they are named for training and validation; None for other folders."""
    files = coco_files(folder)
    if files:
        return find_splits(files) or files
    if labels_of(folder) is not None:
        return [folder]
    images = folder / "images"
    if images.is_dir():
        if labels_of(images) is not None:
            return [images]
        inner = [each for each in images.iterdir() if each.is_dir()]
        if inner and any(labels_of(each) is not None for each in inner):
            return folder_splits(images)
    splits = folder_splits(folder)
    if splits is None:
        return None
    parts = {part: tuple(f / "images" for f in found) for part, found in splits.parts.items()}
    is_yolo = all(labels_of(each) is not None for found in parts.values() for each in found)
    return Splits(parts) if is_yolo else None


def open_yolo(images: Path, reading: Reading) -> Opened:
    """Return a row for each image, with the boxes of the text file of its name."""
    labels, names = labels_of(images), _class_names(images)
    assert labels is not None
    boxes, classes, masks, missing = [], [], [], 0
    files = sorted(file for file in images.iterdir() if IMAGES.has(file))
    for file in files:
        beside = labels / f"{file.stem}.txt"
        missing += not beside.is_file()
        read = [*_read_boxes(beside, names)] if beside.is_file() else []
        boxes.append([box for _, box, _ in read])
        classes.append([name for name, _, _ in read])
        masks.append([polygons for _, _, polygons in read])
    found = [note(f"{images} is read as YOLO, with the boxes in {labels}.", file=str(images))]
    if missing:
        message = f"{missing} of {len(files)} images in {images} have no text file in {labels}: "
        found.append(note(f"{message}they have no boxes.", file=str(images)))
    images_read = [str(file.resolve()) for file in files]
    return _opened(images_read, boxes, classes, masks, "boxes_cxcywh", found)


def yolo_fingerprint(images: Path) -> str:
    """Return a key that changes with the names of the images, the boxes and the class names."""
    labels, names = labels_of(images), _name_file(images)
    files = [*sorted((labels or images).glob("*.txt")), *([names] if names else [])]
    listed = [file.name for file in sorted(images.iterdir())]
    return fingerprint(listed, [f.name for f in files], content_hashes([str(f) for f in files]))


def _read_boxes(
    file: Path, names: Mapping[int, str]
) -> Iterator[tuple[int | str, list[float], list[list[float]]]]:
    """Yield the class, the box and the polygon of each line, if it has one, which the box is
    around."""
    for line, text in enumerate(
        file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1
    ):
        cells = text.split()
        if not cells:
            continue
        numbers = _numbers(cells[1:])
        is_box = numbers is not None and (len(numbers) == 4 or len(numbers) >= 6)
        if not is_box or numbers is None or not cells[0].isdecimal():
            what = f"expected a class number and four numbers of a box; found {text[:60]!r}."
            raise bad_line(file, line, what, fix="Write: class x_centre y_centre width height.")
        number = int(cells[0])
        if names and number not in names:
            what = f"the class {number} has no name; there are {len(names)}, from {min(names)} on."
            raise bad_line(file, line, what, fix="Correct the class, or add its name.")
        polygons = [numbers] if len(numbers) > 4 else []
        if polygons:
            left, right, upper, lower = (
                each for axis in (numbers[::2], numbers[1::2]) for each in (min(axis), max(axis))
            )
            numbers = [(left + right) / 2, (upper + lower) / 2, right - left, lower - upper]
        yield names.get(number, number), numbers, polygons


def _numbers(cells: Sequence[str]) -> list[float] | None:
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        return None


def _name_file(images: Path) -> Path | None:
    above = [images, *images.resolve().parents][: PARENTS + 1]
    files = (folder / name for folder in above for name in NAME_FILES)
    return next((file for file in files if file.is_file()), None)


def _class_names(images: Path) -> dict[int, str]:
    """Return the names of YOLO's classes by number; none if no file has them."""
    file = _name_file(images)
    if file is None:
        return {}
    if file.suffix in (".yaml", ".yml"):
        fix = "Write names: [a, b] or names: {0: a, 1: b}."
        names = read_yaml(file, _Names, fix).names
        listed = names.items() if isinstance(names, dict) else enumerate(names or ())
        return {int(number): str(name) for number, name in listed}
    lines = [line.strip() for line in file.read_text("utf-8", "replace").splitlines()]
    return dict(enumerate(line for line in lines if line))


def _opened(
    images: list[str],
    boxes: Any,
    labels: Any,
    masks: Any,
    column: str,
    found: list[Finding],
) -> Opened:
    """Return the rows; names of classes are texts, numbers stay numbers. Masks are a column if each
    object has one."""
    listed = [*labels]
    is_named = any(isinstance(name, str) for row in listed for name in row)
    kind = pa.list_(pa.string() if is_named else pa.int64())
    columns = {
        "image": pa.array(images, pa.string()),
        column: pa.array([*boxes], BOXES),
        "labels": pa.array(listed, kind),
    }
    shapes = [*masks]
    without = sum(not polygons for row in shapes for polygons in row)
    objects = sum(map(len, shapes))
    if objects and not without:
        columns["masks"] = pa.array(shapes, MASKS)
    elif without < objects:
        message = f"{without:,} of {objects:,} objects have no mask, so that masks are not read."
        found.append(note(message))
    return Opened(pa.table(columns), tuple(found))
