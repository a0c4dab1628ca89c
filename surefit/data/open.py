"""Paths and objects to a Table: one opener per kind of file, found by its ending."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from surefit.data import arrays, delimited, jsonl
from surefit.data.cache import cache_folder, file_fingerprint, fingerprint
from surefit.data.objects import open_rows
from surefit.data.table import Source, Table
from surefit.errors import UsageError
from surefit.findings import fail

FORMAT_VERSION = 1


def _open_records(read: Callable[[Path], Any], path: Path) -> pa.Table:
    """Convert a text file into the cache once, then memory-map it."""
    folder = cache_folder() / "tables" / fingerprint(FORMAT_VERSION, file_fingerprint(path))
    if not folder.exists():
        jsonl.write_arrow(lambda: read(path), folder, str(path))
    return pa.ipc.open_file(pa.memory_map(str(folder / "table.arrow"))).read_all()


def _open_npy(path: Path) -> pa.Table:
    return pa.table({"features": arrays.to_arrow(arrays.map_npy(path, str(path)))})


def _open_npz(path: Path) -> pa.Table:
    return arrays.arrays_to_arrow(arrays.map_npz(path), str(path))


OPENERS: dict[str, Callable[[Path], pa.Table]] = {
    ".jsonl": lambda path: _open_records(jsonl.read_records, path),
    ".csv": lambda path: _open_records(delimited.read_records, path),
    ".npy": _open_npy,
    ".npz": _open_npz,
}


def open_table(data: Any) -> Table:
    """Open paths (one or several, concatenated) or a list of dicts as one Table."""
    if isinstance(data, str | Path):
        data = [data]
    if data and all(isinstance(item, str | Path) for item in data):
        return _open_paths([Path(item) for item in data])
    if isinstance(data, Sequence):
        table = open_rows(data)
        if table.num_rows == 0:
            raise fail("SF101", "The list of rows given from Python is empty.")
        return table
    raise UsageError(
        f"data is a {type(data).__name__}; expected a path, several paths or a list of dicts.",
        "Pass data='train.jsonl' or data=[{'text': …, 'label': …}, …].",
    )


def _open_paths(paths: Sequence[Path]) -> Table:
    files = [file for path in paths for file in _files_of(path)]
    if len(files) > 1 and all(file.suffix == ".npy" for file in files):
        return _open_array_files(files)
    tables, sources, first = [], [], 0
    for file in files:
        table = OPENERS[file.suffix.lower()](file)
        tables.append(table)
        sources.append(Source(str(file), first))
        first += table.num_rows
    if first == 0:
        shown = ", ".join(str(path) for path in paths)
        raise fail("SF101", f"{shown} has no rows.", file=str(paths[0]))
    key = fingerprint(FORMAT_VERSION, [file_fingerprint(file) for file in files])
    return Table(_concatenate(tables, files), tuple(sources), key)


def _files_of(path: Path) -> list[Path]:
    if not path.exists():
        raise UsageError(f"There is no file or folder {path}.", "Check the path.")
    files = (
        sorted(f for f in path.iterdir() if f.suffix.lower() in OPENERS) if path.is_dir() else []
    )
    if path.is_dir() and not files:
        raise fail("SF101", f"The folder {path} holds no {_endings()} file.", file=str(path))
    if path.is_file():
        files = [path]
    for file in files:
        if file.suffix.lower() not in OPENERS:
            raise UsageError(
                f"{file} ends in {file.suffix or 'nothing'!r}; expected {_endings()}.",
                "Convert the file, or rename it after what it holds.",
            )
    return files


def _endings() -> str:
    *most, last = OPENERS
    return f"{', '.join(most)} or {last}"


def _open_array_files(files: Sequence[Path]) -> Table:
    """Several `.npy` files: columns where their names differ (X.npy, y.npy), else shards."""
    parts = [arrays.map_npy(file, str(file)) for file in files]
    key = fingerprint(FORMAT_VERSION, [file_fingerprint(file) for file in files])
    named = {file.stem: part for file, part in zip(files, parts, strict=True)}
    if not any(len(part) for part in parts):
        raise fail("SF101", f"{', '.join(map(str, files))} has no rows.", file=str(files[0]))
    if len(named) == len(files) and len({part.ndim for part in parts}) > 1:
        table = arrays.arrays_to_arrow(named, str(files[0].parent))
        return Table(table, (Source(str(files[0].parent), 0),), key)
    tables = [pa.table({"features": arrays.to_arrow(part)}) for part in parts]
    firsts = [sum(len(t) for t in tables[:place]) for place in range(len(tables))]
    sources = tuple(Source(str(f), first) for f, first in zip(files, firsts, strict=True))
    return Table(_concatenate(tables, files), sources, key)


def _concatenate(tables: Sequence[pa.Table], files: Sequence[Path]) -> pa.Table:
    schema = tables[0].schema
    for table, file in zip(tables[1:], files[1:], strict=True):
        try:
            schema = pa.unify_schemas([schema, table.schema], promote_options="permissive")
        except pa.ArrowException as error:
            raise fail(
                "SF106",
                f"{file} does not go with {files[0]}: {str(error)[:160]}",
                file=str(file),
            ) from None
    return pa.concat_tables(tables, promote_options="permissive")
