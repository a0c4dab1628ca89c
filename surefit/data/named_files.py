"""Files named in a column of a table: arrays and texts take the place of their paths.

Images and audio are decoded when rows are encoded, and keep their paths (see `cell_files.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from surefit.config import Reading
from surefit.core.files import special_kind
from surefit.data.cache import fingerprint
from surefit.data.cache_entry import content_hashes
from surefit.data.cell_files import ARRAYS, FileKind, kind_named
from surefit.data.formats.file_rows import read_contents
from surefit.data.roles import get_role
from surefit.data.table import Table
from surefit.findings import note, rule

NAMED_FILE_MISSING = rule(
    "SF197",
    "error",
    "file named in a column is missing",
    why="The other rows of the column name files that are read; this row has no content.",
    fix="Add the file, correct its name, or remove the row. Paths are relative to the data file.",
)


def read_named_files(table: Table, reading: Reading) -> Table:
    """The table with the content of `.npy` and `.txt` files in the columns that name them."""
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
    """The content of each row's file; a file may be named in several rows, or in none."""
    if list(files) == list(paths):
        return content
    places = {file: place for place, file in enumerate(files)}
    rows = [None if path is None else places[path] for path in paths]
    return content.take(pa.array(rows, pa.int64()))
