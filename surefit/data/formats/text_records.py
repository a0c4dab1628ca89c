"""Records of a text file to Arrow: streamed once into the cache, then memory-mapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from surefit.config import Reading
from surefit.data.arrow_writer import ArrowWriter, ColumnFaultError
from surefit.data.cache import fingerprint, module_fingerprint
from surefit.data.cache_entry import open_entry
from surefit.data.data_rules import CORRUPT_FILE
from surefit.data.expansion import check_expansion
from surefit.data.file_identity import file_fingerprint
from surefit.data.formats.opened import Opened, read_opened, write_findings
from surefit.data.table import CHUNK_ROWS
from surefit.errors import FindingError
from surefit.findings import Finding, rule

TOO_MANY_COLUMNS = rule(
    "SF110",
    "error",
    "too many columns",
    why="A table has a name and a type for every column; so many columns are one array.",
    fix="Save the numbers as one array (.npy), and the other columns in a separate file.",
)


FORMAT_VERSION = 4
MAX_COLUMNS = 10_000

Record = tuple[int, dict[str, Any]]
"""The line number, and the values by column name."""


Records = Iterator[Record | Finding]
"""The records of a file in order, and what is found or inferred while they are read."""

ReadRecords = Callable[[Path, Reading], Records]


def open_records(read: ReadRecords, path: Path, reading: Reading) -> Opened:
    """Convert a text file into the cache once, then memory-map it.

    It is converted again when the file, its settings or the code of its reader changes.
    """
    code = module_fingerprint(read.__module__)
    place = str(path.resolve())  # which the findings name
    key = fingerprint(FORMAT_VERSION, code, file_fingerprint(path), place, reading.model_dump())

    def fill(folder: Path) -> None:
        found = _write(partial(read, path, reading), path, folder / "table.arrow")
        write_findings(folder, found)

    return open_entry("tables", key, fill, read_opened)


def _write(read: Callable[[], Records], source: Path, target: Path) -> list[Finding]:
    """Stream the records into an Arrow file with one type per column; return what was found."""
    found: list[Finding] = []

    def records() -> Iterator[Record]:
        for item in read():
            if isinstance(item, Finding):
                found.append(item)
            else:
                yield item

    def values_of(name: str) -> Iterator[Any]:
        for _, row in _until_fault(records()):
            yield row.get(name)

    try:
        with ArrowWriter(target, CORRUPT_FILE, values_of=values_of) as writer:
            for chunk in _chunks(records()):
                writer.append(_columns(chunk, writer, str(source)), len(chunk))
                check_expansion(source, target.stat().st_size)
    except ColumnFaultError as fault:
        raise _named(fault, records(), source) from None
    return found


def _named(fault: ColumnFaultError, records: Iterator[Record], path: Path) -> FindingError:
    """The error, with the line numbers of its rows."""
    lines = {row: line for row, (line, _) in enumerate(_until_fault(records)) if row in fault.rows}
    message = f"{path.name}, {fault.message('line', [lines[row] for row in fault.rows])}"
    first = fault.rows[0]
    return fault.rule.error(
        message, file=str(path), row=first, line=lines[first], column=fault.column
    )


def _until_fault(records: Iterator[Record]) -> Iterator[Record]:
    """The records before the first one that cannot be read."""
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
    """The error about a table with too many columns."""
    message = f"{Path(file).name} has {count} columns; surefit reads up to {MAX_COLUMNS}."
    return TOO_MANY_COLUMNS.error(message, file=file, line=line)
