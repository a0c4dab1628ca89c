"""A folder with one folder of images per class: image paths and class names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from surefit.config import Reading
from surefit.data.cache import fingerprint
from surefit.data.column_types import IMAGE_ENDINGS
from surefit.data.data_rules import NO_DATA
from surefit.data.file_identity import content_hashes
from surefit.data.formats.opened import Opened

SPLITS = frozenset(("train", "test", "val", "valid", "validation", "dev"))


def splits_of(path: Path) -> list[str]:
    """The splits, if the folder contains only folders named for splits, one of them train."""
    names = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    is_split = "train" in names and SPLITS.issuperset(names)
    return names if is_split and (path / "train").is_dir() else []


def is_class_folder(path: Path) -> bool:
    """Whether a folder in it contains an image, at any depth."""
    return any(True for folder in _classes(path) for _ in _images(folder))


def open_class_folder(path: Path, reading: Reading) -> Opened:
    """Columns `image` (a path) and `label` (the folder's name), sorted by name."""
    path = path.resolve()  # the same rows from any working folder
    paths: list[str] = []
    labels: list[str] = []
    empty = []
    for folder in _classes(path):
        found = sorted(str(image) for image in _images(folder))
        paths += found
        labels += [folder.name] * len(found)
        if not found:
            empty.append(folder.name)
    if empty:
        message = f"{path}: there is no image in the class folder {', '.join(empty[:5])}."
        fix = f"Remove it, or put images into it ({', '.join(IMAGE_ENDINGS)})."
        raise NO_DATA.error(message, fix=fix, file=str(path / empty[0]))
    return Opened(pa.table({"image": pa.array(paths, pa.string()), "label": labels}))


def folder_fingerprint(path: Path) -> str:
    """Changes when an image is added, removed, renamed or its content changes."""
    images = sorted(image for folder in _classes(path) for image in _images(folder))
    names = [image.relative_to(path).as_posix() for image in images]
    return fingerprint(names, content_hashes([str(image) for image in images]))


def _classes(path: Path) -> list[Path]:
    folders = (entry for entry in path.iterdir() if entry.is_dir())
    return sorted(folder for folder in folders if not folder.name.startswith((".", "_")))


def _images(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        for name in names:
            if not name.startswith(".") and name.lower().endswith(IMAGE_ENDINGS):
                yield Path(place, name)
