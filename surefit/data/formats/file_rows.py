"""Files that are one row each, with the label in their names if `label_from` says where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from surefit.config import Reading
from surefit.data.cache import fingerprint
from surefit.data.cache_entry import content_hashes
from surefit.data.cell_files import ARRAYS, FileKind, kind_of
from surefit.data.formats.array_files import join_files
from surefit.data.formats.numpy_files import Shape, map_npy, shape_of
from surefit.data.formats.opened import Opened, converted
from surefit.data.formats.text_decoding import MAX_LINE_BYTES, TextFile, too_long
from surefit.errors import UsageError
from surefit.findings import Finding


def media_kind(path: Path) -> FileKind | None:
    """The kind of an image or audio file, which is a row wherever it is; None for others."""
    kind = kind_of(path)
    return kind if kind is not None and kind.decoded and not path.is_dir() else None


def open_media(path: Path, reading: Reading) -> Opened:
    """One image or audio file, by its path."""
    kind = media_kind(path)
    assert kind is not None
    return read_contents([path], kind, reading)


def open_file_rows(files: Sequence[Path], reading: Reading, to_train: bool) -> Opened | None:
    """Images, audio, and other files whose names have labels, as one row each; None for others.

    Rows to train on need a label from each name; of others, the labels are left out if some names
    have none.
    """
    kinds = {kind_of(file) for file in files}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None or not (kind.decoded or reading.label_from):
        if reading.label_from and to_train:
            raise _not_rows(files)
        return None
    opened = read_contents(files, kind, reading)
    labels = _labels(files, reading.label_from, to_train) if reading.label_from else None
    if labels is None:
        return opened
    return Opened(opened.arrow.append_column("label", pa.array(labels)), opened.findings)


def _not_rows(files: Sequence[Path]) -> UsageError:
    odd = next((file for file in files if kind_of(file) is None), files[-1])
    return UsageError(
        "label_from takes labels from the names of files that are a row each: images, audio, .npy "
        f"arrays or .txt texts, all of one kind; {odd.name} is not.",
        "Leave label_from out, or name the column with columns.label.",
    )


def _labels(files: Sequence[Path], pattern: str, to_train: bool) -> list[str] | None:
    """What the pattern's first group matches in each name."""
    matches = [re.search(pattern, file.name) for file in files]
    odd = next((f for f, match in zip(files, matches, strict=True) if match is None), None)
    if odd is None:
        return [match.group(1) for match in matches if match is not None]
    if to_train:
        raise UsageError(
            f"label_from {pattern!r} does not match the file name {odd.name!r}.",
            "Correct the pattern; its first group is the label.",
        )
    return None


TEXTS_PER_BATCH = 1024


def read_contents(files: Sequence[Path], kind: FileKind, reading: Reading) -> Opened:
    """One row per file, in a column named after the role: what the file holds.

    Images and audio stay on disk: the column has their paths.
    """
    if kind.decoded:
        paths = [str(file.resolve()) for file in files]
        return Opened(pa.table({kind.role: pa.array(paths, pa.string())}))
    if kind is ARRAYS:
        name, column = join_files(files, array_shapes(files))
        return Opened(pa.table({name: column}))
    return open_texts(files, reading)


def array_shapes(files: Sequence[Path]) -> list[Shape]:
    """The shapes of `.npy` files, from their headers; a file that cannot be read is reported."""
    return [shape_of(file) or map_npy(file, str(file)).shape for file in files]


def open_texts(
    files: Sequence[Path],
    reading: Reading,
    labels: Sequence[str] | None = None,
    by_line: bool = False,
) -> Opened:
    """Texts to Arrow in the cache, with the label of each file; one row per file, or per line."""
    names = [str(file.resolve()) for file in files]  # which the findings name
    key = fingerprint("texts", content_hashes(names), names, labels, by_line, reading.model_dump())

    def write(target: Path) -> list[Finding]:
        found: list[Finding] = []
        texts = _texts(files, labels or [""] * len(files), reading, by_line, found)
        _write(target, texts, labels is not None)
        return found

    return converted(key, write)


def _texts(
    files: Sequence[Path],
    labels: Sequence[str],
    reading: Reading,
    by_line: bool,
    found: list[Finding],
) -> Iterator[tuple[str, str]]:
    """Each text with its label; of what is found in the files, the first is kept."""
    for file, label in zip(files, labels, strict=True):
        text = TextFile(file, reading)
        if by_line:
            yield from ((line.rstrip("\r\n"), label) for _, line in text.lines())
        else:
            if file.stat().st_size > MAX_LINE_BYTES:
                raise too_long(file, 1)
            yield "".join(text.chunks()).strip("\r\n"), label
        found.extend(text.findings[:1] if not found else ())


def _write(target: Path, rows: Iterator[tuple[str, str]], labelled: bool) -> None:
    columns = {"text": pa.string(), **({"label": pa.string()} if labelled else {})}
    schema = pa.schema(columns)
    with pa.ipc.new_file(target, schema) as writer:
        while chunk := list(islice(rows, TEXTS_PER_BATCH)):
            arrays = [pa.array(values) for values in zip(*chunk, strict=True)]
            writer.write_batch(pa.record_batch(arrays[: len(columns)], schema=schema))
