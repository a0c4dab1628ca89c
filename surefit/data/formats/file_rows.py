"""Files that are one row each, given themselves or named in a column of a table.

The label may be in their names, if `label_from` says where. Images and audio are decoded when rows
are encoded, and keep their paths (see `cell_files.py`); arrays and texts are read here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from surefit.config import Reading
from surefit.core.files import special_kind
from surefit.core.patterns import matcher
from surefit.data.arrow_writer import ArrowWriter
from surefit.data.cache import fingerprint
from surefit.data.cache_entry import content_hashes
from surefit.data.cell_files import ARRAYS, FileKind, kind_named, kind_of
from surefit.data.data_rules import CORRUPT_FILE
from surefit.data.formats.array_files import join_files
from surefit.data.formats.numpy_files import Shape, map_npy, shape_of
from surefit.data.formats.opened import Opened, converted
from surefit.data.formats.text_decoding import MAX_LINE_BYTES, TextFile, too_long
from surefit.data.roles import get_role
from surefit.data.table import Table
from surefit.errors import UsageError
from surefit.findings import Finding, note, rule

NAMED_FILE_MISSING = rule(
    "SF197",
    "error",
    "file named in a column is missing",
    why="The other rows of the column name files that are read; this row has no content.",
    fix="Add the file, correct its name, or remove the row. Paths are relative to the data file.",
)


def media_kind(path: Path) -> FileKind | None:
    """Return the kind of an image or audio file, which is a row wherever it is; None for others."""
    kind = kind_of(path)
    return kind if kind is not None and kind.decoded and not path.is_dir() else None


def open_media(path: Path, reading: Reading) -> Opened:
    """Return one image or audio file, by its path."""
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
    """Return what the pattern's first group matches in each name."""
    with matcher(pattern, "read.label_from") as found:
        matches = [*found.each(((file, file.name) for file in files), "search")]
    odd = next((file for file, _, groups in matches if groups is None or groups[1] is None), None)
    if odd is None:
        return [str(groups[1]) for _, _, groups in matches if groups is not None]
    if to_train:
        raise UsageError(
            f"label_from {pattern!r} does not match the file name {odd.name!r}.",
            "Correct the pattern; its first group is the label.",
        )
    return None


def read_contents(files: Sequence[Path], kind: FileKind, reading: Reading) -> Opened:
    """Return one row per file, in a column named after the role: what the file holds.

    Images and audio stay on disk: the column has their paths.
    """
    if kind.decoded:
        paths = [os.path.realpath(file) for file in files]  # a loop of links has one, too
        return Opened(pa.table({kind.role: pa.array(paths, pa.string())}))
    if kind is ARRAYS:
        name, column = join_files(files, array_shapes(files))
        return Opened(pa.table({name: column}))
    return open_texts(files, reading)


def array_shapes(files: Sequence[Path]) -> list[Shape]:
    """Return shapes of `.npy` files, from their headers; a file that cannot be read is reported."""
    return [shape_of(file) or map_npy(file, str(file)).shape for file in files]


def open_texts(
    files: Sequence[Path],
    reading: Reading,
    labels: Sequence[str] | None = None,
    by_line: bool = False,
) -> Opened:
    """Texts to Arrow in the cache, with the label of each file; one row per file, or per line."""
    names = [os.path.realpath(file) for file in files]  # which the findings name
    key = fingerprint("texts", content_hashes(names), names, labels, by_line, reading.model_dump())

    found: list[Finding] = []

    def rows() -> Iterator[dict[str, str]]:
        for place, file in enumerate(files):
            text = TextFile(file, reading)
            label = {} if labels is None else {"label": labels[place]}
            yield from ({"text": each, **label} for each in _texts(text, by_line))
            found.extend(text.findings[:1] if not found else ())  # the first is enough

    def write(target: Path) -> list[Finding]:
        with ArrowWriter(target, CORRUPT_FILE) as writer:
            writer.append_all(rows())
        return found

    return converted(key, write)


def _texts(file: TextFile, by_line: bool) -> Iterator[str]:
    if by_line:
        yield from (line.rstrip("\r\n") for _, line in file.lines())
    elif file.path.stat().st_size > MAX_LINE_BYTES:
        raise too_long(file.path, 1)
    else:
        yield "".join(file.chunks()).strip("\r\n")


def read_named_files(table: Table, reading: Reading) -> Table:
    """Return table with the content of `.npy` and `.txt` files in the columns that name them."""
    for column in table.columns:
        kind = kind_named(table, column, lambda found: not found.decoded)
        if kind is None:
            continue
        # labels of time steps are an array per row; a class may be called like a text file
        is_label = column.lower() in get_role("label").names
        names = get_role(kind.role).names
        # beside a column that is named for such content, the paths only tell where it is from
        has_content = any(name != column and name.lower() in names for name in table.columns)
        if kind is ARRAYS if is_label else not has_content:
            table = _with_contents(table, column, kind, reading)
    return table


def _with_contents(table: Table, column: str, kind: FileKind, reading: Reading) -> Table:
    named = replace(table, arrow=table.arrow.select([column]), files=(column,))
    paths: list[Any] = [row[column] or None for row in named.rows()]
    for row, path in enumerate(paths):
        if path is not None and (special_kind(path) or not Path(path).is_file()):
            message = f"row {table.where(row)['row']}: there is no file {path}."
            raise NAMED_FILE_MISSING.error(message, table.where(row), column=column)
    files = list(dict.fromkeys(path for path in paths if path is not None))
    opened = read_contents([Path(file) for file in files], kind, reading)
    content = _by_row(opened.arrow.column(0), files, paths)
    nouns = f"{kind.noun}s" if len(files) > 1 else kind.noun
    message = f"column {column!r} names {len(files)} {nouns}; they are read in place of the names."
    said = note(message, file=table.sources[0].file, column=column)
    return replace(
        table,
        arrow=table.arrow.set_column(table.columns.index(column), column, content),
        key=fingerprint(table.key, column, content_hashes(files)),
        findings=(*table.findings, said, *opened.findings),
        contents=(*table.contents, column),
    )


def _by_row(content: Any, files: Sequence[str], paths: Sequence[str | None]) -> Any:
    """Return the content of each row's file; a file may be named in several rows, or in none."""
    if list(files) == list(paths):
        return content
    places = {file: place for place, file in enumerate(files)}
    rows = [None if path is None else places[path] for path in paths]
    return content.take(pa.array(rows, pa.int64()))
