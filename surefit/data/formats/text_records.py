"""Records of a text file to Arrow: one streaming pass into the cache, then memory-mapped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from surefit.atomic import new_folder, write_json
from surefit.config import Reading
from surefit.data.cache import cache_folder, file_fingerprint, fingerprint
from surefit.data.data_rules import CORRUPT_FILE, MIXED_TYPES
from surefit.data.table import CHUNK_ROWS, describe_type
from surefit.errors import FindingError
from surefit.findings import Finding, Rule, rule

TOO_MANY_COLUMNS = rule(
    "SF110",
    "error",
    "too many columns",
    why="A table has a name and a type for every column; so many of them are rather one array.",
    fix="Save the numbers as one array (.npy), and the other columns beside it.",
)


FORMAT_VERSION = 3
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
        notes: list[Finding] = []

        def records() -> Iterator[Record]:
            notes.clear()
            return read(path, reading, notes)

        write_arrow(records, folder, str(path), notes=notes)
    return read_opened(folder)


def read_opened(folder: Path) -> Opened:
    """Memory-map a table that was converted into `folder`."""
    with (folder / "findings.json").open(encoding="utf-8") as file:
        found = tuple(Finding(**note) for note in json.load(file))
    arrow = pa.ipc.open_file(pa.memory_map(str(folder / "table.arrow"))).read_all()
    return Opened(arrow, found)


def write_arrow(
    records: Callable[[], Iterator[Record]],
    folder: Path,
    file: str,
    where: str = "line",
    notes: Sequence[Finding] = (),
) -> None:
    """Stream records into `folder/table.arrow`, whose columns get one type each.

    The schema grows as the rows need it (null to text, integer to float); when it does, the
    pass starts over, which happens at most once per such column.
    """
    schema = pa.schema([])
    while True:
        try:
            with new_folder(folder) as temporary:
                _write(records(), temporary / "table.arrow", schema, file, where)
                write_findings(temporary, notes)
            return
        except _SchemaGrewError as grown:
            schema = grown.schema


def write_findings(folder: Path, notes: Sequence[Finding]) -> None:
    """Keep what was found in a file beside its table."""
    write_json(folder / "findings.json", [asdict(note) for note in notes])


class _SchemaGrewError(Exception):
    """A later row needs a wider column than the file was begun with."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__()
        self.schema = schema


def _write(records: Iterator[Record], path: Path, schema: pa.Schema, file: str, where: str) -> None:
    chunks = _chunks(records)
    chunk = next(chunks, [])
    place = _Place(file, where, 0)
    schema = _merge(schema, chunk, place)
    with pa.ipc.new_file(path, schema) as writer:
        while chunk:
            found = _merge(schema, chunk, place)
            if found != schema:
                raise _SchemaGrewError(found)
            writer.write_batch(_batch(chunk, schema, place))
            place = _Place(file, where, place.first_row + len(chunk))
            chunk = next(chunks, [])


@dataclass(frozen=True)
class _Place:
    """Where a chunk came from, for messages: records are numbered as `unit` (line or row)."""

    file: str
    unit: str
    first_row: int

    def fail(self, rule: Rule, row: int, number: int, column: str, what: str) -> FindingError:
        message = f"{Path(self.file).name}, {self.unit} {number}: column {column!r} {what}"
        where = {"row": self.first_row + row, self.unit: number}
        return rule.error(message, where, file=self.file, column=column)


def _batch(chunk: Sequence[Record], schema: pa.Schema, place: _Place) -> pa.RecordBatch:
    try:
        return pa.RecordBatch.from_pylist([row for _, row in chunk], schema=schema)
    except pa.ArrowException:
        pass  # a value is too large for its column's type; find which one
    for index, (number, row) in enumerate(chunk):
        for name in row:
            try:
                pa.array([row[name]], schema.field(name).type)
            except pa.ArrowException as error:
                what = f"holds a value that cannot be stored: {str(error)[:80]}"
                raise place.fail(CORRUPT_FILE, index, number, name, what) from None
    raise AssertionError("a chunk could not be written, but every value of it could")


def _chunks(records: Iterator[Record]) -> Iterator[list[Record]]:
    chunk: list[Record] = []
    for record in records:
        chunk.append(record)
        if len(chunk) == CHUNK_ROWS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _merge(schema: pa.Schema, chunk: Sequence[Record], place: _Place) -> pa.Schema:
    """The schema that holds both what came before and this chunk."""
    kinds = dict(zip(schema.names, schema.types, strict=True))
    found = dict.fromkeys(name for _, row in chunk for name in row)
    if len(kinds | found) > MAX_COLUMNS:
        raise too_many_columns(place.file, len(kinds | found))
    for name in found:
        kinds[name] = _column_type(name, kinds.get(name, pa.null()), chunk, place)
    return pa.schema(list(kinds.items()))


def too_many_columns(file: str, count: int, line: int | None = None) -> FindingError:
    """The fault of a table that is wider than a table can be."""
    message = f"{Path(file).name} has {count} columns; at most {MAX_COLUMNS} can be read."
    return TOO_MANY_COLUMNS.error(message, file=file, line=line)


def _column_type(
    name: str, known: pa.DataType, chunk: Sequence[Record], place: _Place
) -> pa.DataType:
    try:
        return _widen(known, pa.array([row.get(name) for _, row in chunk]).type)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        pass  # some value of the chunk does not fit; find which one
    for index, (number, row) in enumerate(chunk):
        value = row.get(name)
        try:
            found = pa.array([value]).type
        except (OverflowError, UnicodeEncodeError) as error:
            what = f"holds a value that cannot be stored: {str(error)[:80]}"
            raise place.fail(CORRUPT_FILE, index, number, name, what) from None
        except pa.ArrowException:
            what = f"mixes types within one value: {str(value)[:40]!r}"
            raise place.fail(MIXED_TYPES, index, number, name, what) from None
        try:
            known = _widen(known, found)
        except pa.ArrowException:
            what = f"holds {_kind(value)} ({str(value)[:40]!r}), but {_arrow_kind(known)} before."
            raise place.fail(MIXED_TYPES, index, number, name, what) from None
    return known


def _widen(known: pa.DataType, found: pa.DataType) -> pa.DataType:
    """The type that holds both; raises ArrowException where there is none."""
    pair = [pa.schema([pa.field("x", kind)]) for kind in (known, found)]
    return pa.unify_schemas(pair, promote_options="permissive").field("x").type


def _kind(value: Any) -> str:
    names = {str: "text", bool: "true/false", int: "a number", float: "a number", dict: "an object"}
    return names.get(type(value), f"a {type(value).__name__}")


def _arrow_kind(kind: pa.DataType) -> str:
    if pa.types.is_string(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "true/false"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "numbers"
    return "an object" if pa.types.is_struct(kind) else describe_type(kind)
