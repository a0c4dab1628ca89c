"""Folders whose names say what their files are: one per class, or images beside their masks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from surefit.config import Reading
from surefit.core.files import refuse_special
from surefit.data.cache import fingerprint
from surefit.data.cache_entry import content_hashes
from surefit.data.cell_files import ARRAYS, IMAGES, TEXTS, FileKind, common_kind
from surefit.data.data_rules import NO_DATA
from surefit.data.formats.array_files import are_rows, join_files
from surefit.data.formats.file_rows import array_shapes, open_texts, read_contents
from surefit.data.formats.numpy_files import map_npy, to_arrow
from surefit.data.formats.opened import Opened
from surefit.data.formats.text_decoding import is_text_file
from surefit.findings import Finding, note, rule

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

IMAGE_FOLDERS = frozenset(("images", "image", "imgs", "img", "jpegimages"))
MASK_FOLDERS = frozenset(
    ("masks", "mask", "labels", "annotations", "segmentationclass", "segmentations")
)
"""What such folders are called, in lower case."""
ENDS = ("", "_mask", "-mask", "_label", "_seg")
"""What the names of masks may have behind those of their images."""
SHOWN = 3
_UNLABELLED = frozenset(("unsup", "unsupervised", "unlabeled", "unlabelled"))
_LOOK_AT = 64


def kind_in(path: Path) -> FileKind | None:
    """Return what the class folders of a folder hold; None if it has no such folders."""
    classes = _classes(path)
    files = [file for folder in classes for file in islice(_files(folder), _LOOK_AT)]
    kind = common_kind(files)
    if kind is not None:
        return kind if kind.decoded or len(classes) > 1 else None
    bare = all(file.suffix[1:].isdecimal() or not file.suffix for file in files)
    return (
        TEXTS
        if bare and files and len(classes) > 1 and all(is_text_file(file) for file in files[:8])
        else None
    )


def num_files(path: Path) -> int:
    """Return how many files the class folders have."""
    return sum(1 for folder in _classes(path) for _ in _files(folder))


def open_folder(path: Path, reading: Reading) -> Opened:
    """Columns of the files' content (`read_contents`) and `label`, sorted by name; or pairs."""
    path = path.resolve()  # the same rows from any working folder
    pair = find_pair(path)
    if pair is not None:
        return _open_pair(pair)
    kind = kind_in(path) or IMAGES
    by_class = {folder.name: list(_of_kind(folder, kind)) for folder in _classes(path)}
    empty = [name for name, files in by_class.items() if not files]
    if empty:
        expected = ", ".join(kind.endings)
        message = f"{path}: there is no {kind.noun} in the class folder {', '.join(empty[:5])}."
        fix = f"Remove it, or put files into it ({expected})."
        raise NO_DATA.error(message, fix=fix, file=str(path / empty[0]))
    files = [file for found in by_class.values() for file in found]
    labels = [name for name, found in by_class.items() for _ in found]
    unread = [folder for folder in _folders(path) if folder.name.lower() in _UNLABELLED]
    notes = tuple(note(f"The folder {each} is not read.", file=str(each)) for each in unread)
    one_each = len(files) == len({*labels})
    if kind is ARRAYS:
        return Opened(_read_arrays(files, labels), notes)
    if kind is TEXTS:
        opened = open_texts(files, reading, labels, by_line=one_each)
        return Opened(opened.arrow, (*notes, *opened.findings))
    opened = read_contents(files, kind, reading)
    return Opened(opened.arrow.append_column("label", pa.array(labels, pa.string())), notes)


def _read_arrays(files: Sequence[Path], labels: Sequence[str]) -> pa.Table:
    """One row per file, or one per entry of the first axis where each class has one large array."""
    shapes = array_shapes(files)
    one_each = len(files) == len({*labels})
    is_rows = are_rows(shapes) or (len(shapes[0]) == 2 and not one_each)
    if is_rows:
        name, column = join_files(files, shapes)
        return pa.table({name: column, "label": labels})
    parts = [pa.chunked_array([to_arrow(map_npy(file, str(file)))]) for file in files]
    tables = [
        pa.table({"features": part, "label": [label] * len(part)})
        for part, label in zip(parts, labels, strict=True)
    ]
    return pa.concat_tables(tables, promote_options="permissive")


def folder_fingerprint(path: Path) -> str:
    """Changes when a file is added, removed, renamed or its content changes."""
    kind = kind_in(path) or IMAGES
    files = sorted(file for folder in _classes(path) for file in _of_kind(folder, kind))
    names = [file.relative_to(path).as_posix() for file in files]
    return fingerprint(names, content_hashes([str(file) for file in files]))


def _classes(path: Path) -> list[Path]:
    return [folder for folder in _folders(path) if folder.name.lower() not in _UNLABELLED]


def _folders(path: Path) -> list[Path]:
    folders = (entry for entry in path.iterdir() if entry.is_dir())
    return sorted(folder for folder in folders if not folder.name.startswith((".", "_")))


def _of_kind(folder: Path, kind: FileKind) -> list[Path]:
    """Return the files of a class folder that are read, sorted."""
    found = sorted(file for file in _files(folder) if kind.has(file))
    return sorted(_files(folder)) if kind is TEXTS and not found else found


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        for name in names:
            if not name.startswith("."):
                refuse_special(os.path.join(place, name))
                yield Path(place, name)


def find_pair(path: Path) -> tuple[Path, Path] | None:
    """Return the folders of images and of masks, if a folder has these two and no other."""
    inside = _folders(path)
    images = [folder for folder in inside if folder.name.lower() in IMAGE_FOLDERS]
    masks = [folder for folder in inside if folder.name.lower() in MASK_FOLDERS]
    if len(inside) != 2 or len(images) != 1 or len(masks) != 1:
        return None
    return images[0], masks[0]


def _open_pair(pair: tuple[Path, Path]) -> Opened:
    """Return columns `image` and `mask` with the paths of files, sorted by name."""
    images, masks = (_by_name(folder) for folder in pair)
    for name in [*masks]:  # a mask may have the name of its image and more
        ends = (end for end in ENDS if name.endswith(end) and name.removesuffix(end) in images)
        masks[name.removesuffix(next(ends, ""))] = masks.pop(name)
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
    """Return the images in a folder, at any depth, by their path in it without the ending."""
    files = _of_kind(folder, IMAGES)
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def _some(files: list[str]) -> str:
    names = [Path(file).name for file in files[:SHOWN]]
    return ", ".join(names) + (" …" if len(files) > SHOWN else "")
