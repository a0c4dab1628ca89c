"""Records of a text file to Arrow: one streaming pass into the cache, then memory-mapped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from surefit.atomic import new_folder, write_json
from surefit.config import Reading
from surefit.data.arrow_types import map_arrow
from surefit.data.arrow_writer import ArrowWriter, ColumnFaultError
from surefit.data.cache import cache_folder, file_fingerprint, fingerprint
from surefit.data.data_rules import CORRUPT_FILE
from surefit.data.table import CHUNK_ROWS
from surefit.errors import FindingError
from surefit.findings import Finding, rule

TOO_MANY_COLUMNS = rule(
    "SF110",
    "error",
    "too many columns",
    why="A table has a name and a type for every column; so many of them are rather one array.",
    fix="Save the numbers as one array (.npy), and the other columns beside it.",
)


FORMAT_VERSION = 4
MAX_COLUMNS = 10_000

Record = tuple[int, dict[str, Any]]
"""The number of a line (or row), and the values found there."""


@dataclass(frozen=True)
class Opened:
    """The rows of one file, and what was found or assumed while it was read."""

    arrow: pa.Table
    findings: tuple[Finding, ...] = ()


ReadRecords = Callable[[Path, Reading, list[Finding]], Iterator[Record]]
"""Reads a file record by record; what it assumes on the way goes to the list."""


def open_records(read: ReadRecords, path: Path, reading: Reading) -> Opened:
    """Convert a text file into the cache once, then memory-map it."""
    key = fingerprint(FORMAT_VERSION, read.__module__, file_fingerprint(path), reading.model_dump())
    folder = cache_folder() / "tables" / key
    if not folder.exists():
        with new_folder(folder) as temporary:
            notes = _write(partial(read, path, reading), path, temporary / "table.arrow")
            write_findings(temporary, notes)
    return read_opened(folder)


def read_opened(folder: Path) -> Opened:
    """Memory-map a table that was converted into `folder`."""
    with (folder / "findings.json").open(encoding="utf-8") as file:
        found = tuple(Finding(**note) for note in json.load(file))
    return Opened(map_arrow(folder / "table.arrow"), found)


def _write(
    read: Callable[[list[Finding]], Iterator[Record]], source: Path, target: Path
) -> list[Finding]:
    """Stream the records into an Arrow file, whose columns get one type each; what was found."""
    notes: list[Finding] = []

    def values_of(name: str) -> Iterator[Any]:
        for _, row in _until_fault(read([])):
            yield row.get(name)

    try:
        with ArrowWriter(target, CORRUPT_FILE, values_of=values_of) as writer:
            for chunk in _chunks(read(notes)):
                writer.append(_columns(chunk, writer, str(source)), len(chunk))
    except ColumnFaultError as fault:
        raise _named(fault, read([]), source) from None
    return notes


def write_findings(folder: Path, notes: Sequence[Finding]) -> None:
    """Keep what was found in a file beside its table."""
    write_json(folder / "findings.json", [asdict(note) for note in notes])


def _named(fault: ColumnFaultError, records: Iterator[Record], path: Path) -> FindingError:
    """The fault with the lines that its rows have in the file."""
    lines = {row: line for row, (line, _) in enumerate(_until_fault(records)) if row in fault.rows}
    message = f"{path.name}, {fault.message('line', [lines[row] for row in fault.rows])}"
    first = fault.rows[0]
    return fault.rule.error(
        message, file=str(path), row=first, line=lines[first], column=fault.column
    )


def _until_fault(records: Iterator[Record]) -> Iterator[Record]:
    """The records before one that cannot be read."""
    with suppress(FindingError):
        yield from records


def _chunks(records: Iterator[Record]) -> Iterator[list[Record]]:
    chunk: list[Record] = []
    for record in records:
        chunk.append(record)
        if len(chunk) == CHUNK_ROWS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _columns(chunk: Sequence[Record], writer: ArrowWriter, file: str) -> dict[str, pa.Array]:
    names = dict.fromkeys(name for _, row in chunk for name in row)
    num_columns = len(names.keys() | set(writer.schema.names))
    if num_columns > MAX_COLUMNS:
        raise too_many_columns(file, num_columns)
    return {name: writer.column(name, [row.get(name) for _, row in chunk]) for name in names}


def too_many_columns(file: str, count: int, line: int | None = None) -> FindingError:
    """The fault of a table that is wider than a table can be."""
    message = f"{Path(file).name} has {count} columns; at most {MAX_COLUMNS} can be read."
    return TOO_MANY_COLUMNS.error(message, file=file, line=line)
