"""Columns whose texts are the names of files that are there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from surefit.data.column_types import is_text
from surefit.data.file_kinds import FileKind, kind_of
from surefit.data.split import sample_rows
from surefit.data.table import Table

LOOKED_AT = 64
LONGEST = 1024


def kind_named(table: Table, column: str, wanted: Callable[[FileKind], bool]) -> FileKind | None:
    """What the files hold that the texts of a column name; None where it has other texts."""
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
