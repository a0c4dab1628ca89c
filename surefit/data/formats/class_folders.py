"""A folder with one folder per class: images, arrays or texts, and class names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from surefit.config import Reading
from surefit.data.cache import fingerprint
from surefit.data.cache_entry import open_entry
from surefit.data.column_types import AUDIO_ENDINGS, IMAGE_ENDINGS
from surefit.data.data_rules import NO_DATA
from surefit.data.file_identity import content_hashes
from surefit.data.formats.array_files import are_rows, join_files
from surefit.data.formats.numpy_files import map_npy, shape_of, to_arrow
from surefit.data.formats.opened import Opened, read_opened, write_findings
from surefit.data.formats.text_decoding import MAX_LINE_BYTES, TextFile, is_text_file, too_long
from surefit.findings import Finding, rule
from surefit.regular_files import refuse_special

UNLABELLED_FOLDER = rule(
    "SF174",
    "info",
    "folder of unlabelled rows left out",
    why="Its name states that the files have no class; read as a class, it would be learned.",
    fix="Rename the folder if it is a class.",
)

_UNLABELLED = frozenset(("unsup", "unsupervised", "unlabeled", "unlabelled"))
_LOOK_AT = 64
TEXTS_PER_BATCH = 1024
KINDS: dict[str, tuple[str, ...]] = {
    "image": IMAGE_ENDINGS,
    "array": (".npy",),
    "audio": AUDIO_ENDINGS,
    "text": (".txt",),
}
"""What the files of class folders hold, and their endings; the first kind that occurs decides."""


def kind_of(path: Path) -> str | None:
    """What the class folders of a folder hold; None if it has no such folders."""
    classes = _classes(path)
    files = [file for folder in classes for file in islice(_files(folder), _LOOK_AT)]
    for kind, endings in KINDS.items():
        if any(file.name.lower().endswith(endings) for file in files):
            is_read = kind == "image" or (kind != "audio" and len(classes) > 1)
            return kind if is_read else None
    bare = all(file.suffix[1:].isdecimal() or not file.suffix for file in files)
    return (
        "text"
        if bare and files and len(classes) > 1 and all(is_text_file(file) for file in files[:8])
        else None
    )


def num_files(path: Path) -> int:
    """How many files the class folders have."""
    return sum(1 for folder in _classes(path) for _ in _files(folder))


def audio_in(path: Path) -> list[Path]:
    """The audio files of a folder, at any depth."""
    return sorted(f for f in _files(path) if f.name.lower().endswith(AUDIO_ENDINGS))


def open_class_folder(path: Path, reading: Reading) -> Opened:
    """Columns of the files' content (images: their paths) and `label`, sorted by name."""
    path = path.resolve()  # the same rows from any working folder
    kind = kind_of(path)
    by_class = {folder.name: list(_of_kind(folder, kind)) for folder in _classes(path)}
    empty = [name for name, files in by_class.items() if not files]
    if empty:
        expected = ", ".join(KINDS[kind or "image"])
        message = f"{path}: there is no {kind} in the class folder {', '.join(empty[:5])}."
        fix = f"Remove it, or put files into it ({expected})."
        raise NO_DATA.error(message, fix=fix, file=str(path / empty[0]))
    files = [file for found in by_class.values() for file in found]
    labels = [name for name, found in by_class.items() for _ in found]
    notes = _left_out(path)
    if kind == "array":
        return Opened(_read_arrays(files, labels), notes)
    if kind == "text":
        opened = _open_texts(path, reading, files, labels)
        return Opened(opened.arrow, (*notes, *opened.findings))
    paths = pa.array([str(file) for file in files], pa.string())
    return Opened(pa.table({"image": paths, "label": labels}), notes)


def _read_arrays(files: Sequence[Path], labels: Sequence[str]) -> pa.Table:
    """One row per file, or one per entry of the first axis where each class has one large array."""
    shapes = [shape_of(file) or map_npy(file, str(file)).shape for file in files]
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


def _open_texts(
    path: Path, reading: Reading, files: Sequence[Path], labels: Sequence[str]
) -> Opened:
    """Texts to Arrow in the cache; where each class has one file, its lines are the rows."""
    place = str(path.resolve())  # which the findings name
    key = fingerprint("texts", folder_fingerprint(path), place, reading.model_dump())

    def fill(folder: Path) -> None:
        found = _write_texts(folder / "table.arrow", reading, files, labels)
        write_findings(folder, found)

    return open_entry("tables", key, fill, read_opened)


def _write_texts(
    target: Path, reading: Reading, files: Sequence[Path], labels: Sequence[str]
) -> list[Finding]:
    by_line = len(files) == len({*labels})
    found: list[Finding] = []

    def rows() -> Iterator[tuple[str, str]]:
        for file, label in zip(files, labels, strict=True):
            text = TextFile(file, reading)
            if by_line:
                yield from ((line.rstrip("\r\n"), label) for _, line in text.lines())
            else:
                if file.stat().st_size > MAX_LINE_BYTES:
                    raise too_long(file, 1)
                yield "".join(text.chunks()).strip("\r\n"), label
            found.extend(text.findings[: 1 - len(found)] if not found else ())

    schema = pa.schema({"text": pa.string(), "label": pa.string()})
    made = rows()
    with pa.ipc.new_file(target, schema) as writer:
        while chunk := list(islice(made, TEXTS_PER_BATCH)):
            texts, names = zip(*chunk, strict=True)
            writer.write_batch(pa.record_batch([pa.array(texts), pa.array(names)], schema=schema))
    return found


def folder_fingerprint(path: Path) -> str:
    """Changes when a file is added, removed, renamed or its content changes."""
    kind = kind_of(path)
    files = sorted(file for folder in _classes(path) for file in _of_kind(folder, kind))
    names = [file.relative_to(path).as_posix() for file in files]
    return fingerprint(names, content_hashes([str(file) for file in files]))


def _left_out(path: Path) -> tuple[Finding, ...]:
    left = [folder for folder in _folders(path) if folder.name.lower() in _UNLABELLED]
    return tuple(
        UNLABELLED_FOLDER.finding(f"The folder {folder} is not read.", file=str(folder))
        for folder in left
    )


def _classes(path: Path) -> list[Path]:
    return [folder for folder in _folders(path) if folder.name.lower() not in _UNLABELLED]


def _folders(path: Path) -> list[Path]:
    folders = (entry for entry in path.iterdir() if entry.is_dir())
    return sorted(folder for folder in folders if not folder.name.startswith((".", "_")))


def _of_kind(folder: Path, kind: str | None) -> list[Path]:
    """The files of a class folder that are read, sorted."""
    endings = KINDS[kind or "image"]
    found = sorted(file for file in _files(folder) if file.name.lower().endswith(endings))
    return sorted(_files(folder)) if kind == "text" and not found else found


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        for name in names:
            if not name.startswith("."):
                refuse_special(os.path.join(place, name))
                yield Path(place, name)
