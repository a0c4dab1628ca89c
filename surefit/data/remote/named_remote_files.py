"""Files that a column of a remote table names, relative to the table: copied beside it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from surefit.data.cell_files import holds_files
from surefit.data.column_types import is_text
from surefit.data.file_kinds import kind_of
from surefit.data.remote.download import look_at_all
from surefit.data.remote.remote_copy import Copy, copy_files, files_of_protocol
from surefit.data.remote.remote_file import UNREADABLE_URL, RemoteError
from surefit.data.remote.remote_url import is_url
from surefit.data.table import Source, Table

TRIED = 8
LONGEST = 1024


def fetch_named_files(table: Table, copies: Sequence[Copy]) -> Table:
    """The table, with the files that its cells name copied to where local ones would be."""
    for copy in copies:
        named = list(_named(table, copy))
        if named:
            table = _with_files(table, copy, named)
    return table


def _with_files(table: Table, copy: Copy, named: Sequence[str]) -> Table:
    listing, reader = copy.listing, files_of_protocol(copy.listing.root)
    known = {file.path: file for file in listing.left}
    urls = ((listing.root + name, name) for name in named if name not in known)
    try:
        first = dict(look_at_all(islice(urls, TRIED), reader))
        found = {**first, **dict(look_at_all(urls, reader))} if any(first.values()) else {}
    except RemoteError as error:
        raise UNREADABLE_URL.error(error.message, fix=error.fix) from None
    found |= {name: known[name] for name in named if name in known}
    more = tuple(file for _, file in sorted(found.items()) if file is not None)
    if not more:
        return table
    whole = replace(listing, files=(*listing.files, *more), left=())
    name = f"{listing.root} {listing.files[0].path} and the files it names"
    made = copy_files(name, whole)
    sources = tuple(_moved(source, copy.folder, made.folder) for source in table.sources)
    return replace(table, sources=sources, findings=(*table.findings, *made.findings))


def _moved(source: Source, old: Path, new: Path) -> Source:
    place = Path(source.file)
    if not place.is_relative_to(old):
        return source
    return replace(source, file=str(new / place.relative_to(old)))


def _named(table: Table, copy: Copy) -> Iterator[str]:
    """Paths below the folder of the listing that cells name, and that are not copied yet."""
    seen = {file.path for file in copy.listing.files}
    ends = [*(source.first_row for source in table.sources[1:]), table.num_rows]
    for source, end in zip(table.sources, ends, strict=True):
        place = Path(source.file)
        if not place.is_relative_to(copy.folder) or place.is_dir():
            continue
        folder = place.relative_to(copy.folder).parent.as_posix()
        rows = table.arrow.slice(source.first_row, end - source.first_row)
        for name in rows.column_names:
            for text in _paths_in(rows[name]):
                path = posixpath.normpath(posixpath.join(folder, text))
                if path not in seen and not path.startswith(("../", "/")):
                    seen.add(path)
                    yield path


def _paths_in(column: pa.ChunkedArray) -> Iterator[str]:
    """The texts of a column, if the first ones are relative paths of files that are rows."""
    if not holds_files(column.type):
        return
    if not is_text(column.type):
        column = pc.struct_field(column, "path")
        if not is_text(column.type):
            return
    first = [text for text in column.slice(0, TRIED).to_pylist() if text]
    if not first or not all(_is_path(text) for text in first):
        return
    for chunk in pc.unique(column).to_pylist():
        if chunk and _is_path(chunk):
            yield chunk


def _is_path(text: str) -> bool:
    plain = len(text) < LONGEST and "\n" not in text and not is_url(text)
    return plain and not text.startswith("/") and kind_of(text) is not None
