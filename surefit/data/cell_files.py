"""Cells that name or hold a file: a path, bytes, or `{bytes, path}` as `datasets` has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.data.cache import fingerprint
from surefit.data.column_types import is_text
from surefit.data.extra_columns import base_role
from surefit.data.file_identity import content_hashes
from surefit.data.file_kinds import DECODED, FileKind
from surefit.data.formats.tar_index import read_member
from surefit.data.table import Table

LOOKED_AT_CELLS = 16
FILE_ROLES = tuple(kind.role for kind in DECODED)
"""Roles whose columns may hold paths of files that are decoded."""


def unwrapped(value: Any) -> Any:
    """The bytes or the path of `{bytes, path}`, the bytes of a member of a tar file.

    Other values, with an array too, are returned as they are.
    """
    if isinstance(value, Mapping) and "tar" in value:
        return read_member(value)
    if isinstance(value, Mapping) and "array" not in value:
        return value.get("path") if value.get("bytes") is None else value["bytes"]
    return value


def is_empty(value: Any) -> bool:
    """Whether a cell has neither a path nor bytes nor values."""
    if isinstance(value, Mapping) and "tar" in value:
        return not value["size"]
    value = unwrapped(value)
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Mapping):
        return np.size(value.get("array", ())) == 0
    return value is None or (not isinstance(value, bytes) and np.size(value) == 0)


def holds_files(kind: pa.DataType) -> bool:
    """Whether a column may contain paths of files: text, or a struct with a path.

    Members of a tar file have a path to show, but are no files.
    """
    if not pa.types.is_struct(kind):
        return is_text(kind)
    return bool(kind.get_field_index("path") >= 0 and kind.get_field_index("tar") < 0)


def shown_name(value: Any) -> str:
    """What messages call the content of a cell: its path, else how many bytes it has."""
    if isinstance(value, Mapping) and isinstance(value.get("path"), str) and value["path"]:
        return str(value["path"])
    held = unwrapped(value)
    return f"{len(held)} bytes" if isinstance(held, bytes) else str(held)


def with_files(table: Table, roles: Mapping[str, str], of: Sequence[str] = FILE_ROLES) -> Table:
    """The table with the paths of these roles resolved; its key covers the files' content.

    A relative path is searched next to the data file, then in the working folder.
    """
    for role, column in roles.items():
        is_read = base_role(role, column) in of
        if not is_read or column in table.files or column not in table.columns:
            continue
        if holds_files(table.column_type(column)):
            table = _with_paths(table, column)
    return table


def _with_paths(table: Table, column: str) -> Table:
    found = Table(table.arrow.select([column]), table.sources, table.key, files=(column,))
    named = (unwrapped(row[column]) for row in found.rows())
    hashes = content_hashes([path for path in named if isinstance(path, str)])
    return replace(table, key=fingerprint(table.key, hashes), files=(*table.files, column))


def names_files(table: Table, column: str, kind: FileKind) -> bool:
    """Whether one of the first texts of a column names a file of this kind.

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
