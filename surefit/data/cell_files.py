"""Cells that name or hold a file: a path, bytes, or `{bytes, path}` as `datasets` has them.

What a file holds is known by its ending: an image, audio, an array or a text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surefit.data.cache import fingerprint
from surefit.data.cache_entry import content_hashes
from surefit.data.column_types import (
    AUDIO_ENDINGS,
    CHANNELS,
    IMAGE_ENDINGS,
    array_rank,
    is_array,
    is_list,
    is_text,
    list_axes,
    may_hold_audio,
    may_hold_images,
)
from surefit.data.row_arrays import row_shape
from surefit.data.several_columns import base_role
from surefit.data.split import sample_rows
from surefit.data.table import Table


@dataclass(frozen=True)
class FileKind:
    """One kind of file: the role of its content, its noun in messages, and its endings."""

    role: str
    noun: str
    endings: tuple[str, ...]
    decoded: bool = False
    """Whether a table holds the paths, and the files are decoded when rows are encoded."""

    def has(self, path: str | Path) -> bool:
        """Return whether a path has one of the endings; a hidden file has none."""
        name = Path(path).name.lower()
        return name.endswith(self.endings) and not name.startswith(".")


IMAGES = FileKind("image", "image", IMAGE_ENDINGS, decoded=True)
AUDIO = FileKind("audio", "audio file", AUDIO_ENDINGS, decoded=True)
ARRAYS = FileKind("features", "array", (".npy",))
TEXTS = FileKind("text", "text", (".txt",))
KINDS = (IMAGES, AUDIO, ARRAYS, TEXTS)
DECODED = tuple(kind for kind in KINDS if kind.decoded)


def kind_of(path: str | Path) -> FileKind | None:
    """Return what a file holds, by its ending; None for other endings.

    >>> kind_of("a/B.WAV").role, kind_of("rows.csv")
    ('audio', None)
    """
    return next((kind for kind in KINDS if kind.has(path)), None)


def common_kind(paths: Iterable[str | Path]) -> FileKind | None:
    """Return what files hold: the more frequent of images and audio, else arrays, else texts.

    Texts may lie beside the files that they describe.
    """
    found = Counter(kind for kind in map(kind_of, paths) if kind is not None)
    media = max(DECODED, key=lambda kind: found[kind])
    return next((kind for kind in (media, *KINDS) if found[kind]), None)


LOOKED_AT_CELLS = 16
FILE_ROLES = tuple(kind.role for kind in DECODED)
"""Roles whose columns may hold paths of files that are decoded."""


def unwrapped(value: Any) -> Any:
    """Return the bytes or the path of `{bytes, path}`, the bytes of a member of a tar file.

    Other values, with an array too, are returned as they are.
    """
    if isinstance(value, Mapping) and "tar" in value:
        with open(value["tar"], "rb") as file:
            file.seek(value["offset"])
            return file.read(value["size"])
    if isinstance(value, Mapping) and "array" not in value:
        return value.get("path") if value.get("bytes") is None else value["bytes"]
    return value


def is_empty(value: Any) -> bool:
    """Return whether a cell has neither a path nor bytes nor values."""
    if isinstance(value, Mapping) and "tar" in value:
        return not value["size"]
    value = unwrapped(value)
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Mapping):
        return np.size(value.get("array", ())) == 0
    return value is None or (not isinstance(value, bytes) and np.size(value) == 0)


def holds_files(kind: pa.DataType) -> bool:
    """Return whether a column may contain paths of files: text, or a struct with a path.

    Members of a tar file have a path to show, but are no files.
    """
    if not pa.types.is_struct(kind):
        return is_text(kind)
    return bool(kind.get_field_index("path") >= 0 and kind.get_field_index("tar") < 0)


def shown_name(value: Any) -> str:
    """Return what messages call the content of a cell: its path, else how many bytes it has."""
    if isinstance(value, Mapping) and isinstance(value.get("path"), str) and value["path"]:
        return str(value["path"])
    held = unwrapped(value)
    return f"{len(held)} bytes" if isinstance(held, bytes) else str(held)


def with_files(table: Table, roles: Mapping[str, str], of: Sequence[str] = FILE_ROLES) -> Table:
    """Return the table with the paths of these roles resolved; its key covers the files' content.

    A relative path is searched next to the data file, then in the working folder.
    """
    for role, column in roles.items():
        is_read = base_role(role, column) in of
        if not is_read or column in table.files or column not in table.columns:
            continue
        if holds_files(table.column_type(column)):
            found = Table(table.arrow.select([column]), table.sources, table.key, files=(column,))
            named = (unwrapped(row[column]) for row in found.rows())
            hashes = content_hashes([path for path in named if isinstance(path, str)])
            key, files = fingerprint(table.key, hashes), (*table.files, column)
            table = replace(table, key=key, files=files)
    return table


def names_files(table: Table, column: str, kind: FileKind) -> bool:
    """Return whether one of the first texts of a column names a file of this kind.

    A path without a known ending counts for images, whose format is in the file.
    """
    rows = range(min(LOOKED_AT_CELLS, table.num_rows))
    named = replace(table, arrow=table.arrow.select([column]), files=(column,))
    texts = [row[column] for row in named.rows(rows)]
    if any(text and kind.has(text) for text in texts):
        return True
    others = [other for other in DECODED if other is not kind]
    unknown = [text for text in texts if text and not any(other.has(text) for other in others)]
    return kind is DECODED[0] and any(Path(text).is_file() for text in unknown)


LOOKED_AT = 64
LONGEST = 1024
MOST_CLASSES = 32
"""Different values that the first rows of a mask may have."""


def kind_named(table: Table, column: str, wanted: Callable[[FileKind], bool]) -> FileKind | None:
    """Return what the files hold that the texts of a column name; None where it has other texts."""
    if not is_text(table.column_type(column)):
        return None

    def kind(text: str) -> FileKind | None:
        found = None if len(text) > LONGEST or "\n" in text else kind_of(text)
        return found if found is not None and wanted(found) else None

    first = table.arrow[column].slice(0, 1).to_pylist()
    if any(kind(text) is None for text in first if text):
        return None
    rows = sample_rows(table.num_rows, LOOKED_AT, seed=0)
    plain = replace(table, arrow=table.arrow.select([column]), files=())
    texts = [row[column] for row in plain.rows(rows.tolist()) if row[column]]
    kinds = {kind(text) for text in texts}
    only = kinds.pop() if len(kinds) == 1 else None
    if only is None:
        return None
    named = replace(plain, files=(column,))
    found = [row[column] for row in named.rows(rows.tolist()) if row[column]]
    there = sum(Path(path).is_file() for path in found)
    return only if 2 * there > len(found) else None


def holds(table: Table, column: str, role: str) -> bool:
    """Whether a column has what the role reads, judged by type, shape and files, not by name."""
    kind = table.column_type(column)
    if is_text(kind):
        return kind_named(table, column, lambda each: each.role == role) is not None
    if role == "audio":
        return may_hold_audio(kind, False)
    if not is_array(kind):
        return may_hold_images(kind, True) and not may_hold_audio(kind, False)
    if array_rank(kind) == 3:
        sizes = [axis.size for axis in row_shape(table, column).axes]
        return bool({sizes[0], sizes[2]} & {*CHANNELS})
    return may_hold_images(kind, False)


def is_class_map(table: Table, column: str) -> bool:
    """Return whether a column has one small class number per pixel, as masks have."""
    axes, value = list_axes(table.column_type(column))
    if not (pa.types.is_integer(value) or pa.types.is_boolean(value)):
        return False
    if len(axes) == 3:
        sizes = [axis.size for axis in row_shape(table, column).axes]
        if 1 not in (sizes[0], sizes[2]):
            return False
    elif len(axes) != 2:
        return False
    values = table.arrow[column].slice(0, LOOKED_AT).combine_chunks()
    while is_list(values.type):
        values = values.flatten()
    return bool(pc.count_distinct(values).as_py() <= MOST_CLASSES)
