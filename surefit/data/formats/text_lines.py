"""Text files to rows, one per line; labels at the start of lines become a column."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from surefit.config import Reading
from surefit.data.arrow_writer import ArrowWriter, ColumnFaultError
from surefit.data.cache import fingerprint, module_fingerprint
from surefit.data.cache_entry import open_entry
from surefit.data.data_rules import CORRUPT_FILE, check_expansion
from surefit.data.file_identity import file_fingerprint
from surefit.data.formats.opened import Opened, read_opened, write_findings
from surefit.data.formats.text_decoding import TextFile
from surefit.data.missing_values import describe_missing, markers_of
from surefit.data.table import CHUNK_ROWS
from surefit.errors import FindingError, UsageError
from surefit.findings import Finding, note, rule

TOO_MANY_COLUMNS = rule(
    "SF110",
    "error",
    "too many columns",
    why="A table has a name and a type for every column; so many columns are one array.",
    fix="Save the numbers as one array (.npy), and the other columns in a separate file.",
)


FORMAT_VERSION = 5
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
        markers = markers_of(reading)
        found = _write(partial(read, path, reading), path, folder / "table.arrow", markers)
        write_findings(folder, found)

    return open_entry("tables", key, fill, read_opened)


def _write(
    read: Callable[[], Records], source: Path, target: Path, markers: Collection[str]
) -> list[Finding]:
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
        with ArrowWriter(target, CORRUPT_FILE, values_of=values_of, markers=markers) as writer:
            for chunk in _chunks(records()):
                writer.append(_columns(chunk, writer, str(source)), len(chunk))
                check_expansion(source, target.stat().st_size)
    except ColumnFaultError as fault:
        raise _named(fault, records(), source) from None
    return [*found, *describe_missing(writer.missing, "numbers", str(source))]


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


SAMPLE_LINES = 1000
_FEWEST_LINES = 4

FASTTEXT = "__label__x text"
LAYOUTS: dict[str, re.Pattern[str]] = {
    FASTTEXT: re.compile(r"(?P<label>__label__\S+(\s+__label__\S+)*)(\s+(?P<text>.*))?"),
    "LABEL:fine text": re.compile(r"(?P<label>[A-Za-z]\w*):(?P<fine>[\w-]+)[ \t]+(?P<text>\S.*)"),
}
"""Layouts of lines that start with a label; groups become columns."""


def read_records(path: Path, reading: Reading) -> Records:
    """Line number and row of each line; without labels or a pattern, the line is `text`."""
    pattern, shown = _chosen_pattern(reading), f"read.pattern {reading.pattern!r}"
    if pattern is None:
        name = _find_layout(path, reading)
        pattern, shown = LAYOUTS.get(name or ""), f"the layout {name!r} of the earlier lines"
        if pattern is not None:
            columns = ", ".join(pattern.groupindex)
            message = f"{path.name}: lines are {name!r}; the columns are {columns}."
            yield note(message, file=str(path))
    several = pattern is LAYOUTS[FASTTEXT] and _has_several_labels(path, reading)
    file = TextFile(path, reading)
    for number, line in file.lines():
        line = line.rstrip("\r\n")
        if pattern is None:
            yield number, {"text": line}
        elif line.strip():
            row = _match(pattern, line, shown, path, number)
            if pattern is LAYOUTS[FASTTEXT]:
                labels = [label.removeprefix("__label__") for label in row["label"].split()]
                row["label"] = labels if several else labels[0]
            yield number, row
    yield from file.findings


def _chosen_pattern(reading: Reading) -> re.Pattern[str] | None:
    if reading.pattern is None:
        return None
    try:
        pattern = re.compile(reading.pattern)
    except re.error as error:
        raise UsageError(
            f"read.pattern is {reading.pattern!r}: {error}.", "Write a regular expression."
        ) from None
    if not pattern.groupindex:
        raise UsageError(
            f"read.pattern is {reading.pattern!r}, which has no named groups.",
            "Name the groups after the columns: (?P<label>\\w+) (?P<text>.*)",
        )
    return pattern


def _find_layout(path: Path, reading: Reading) -> str | None:
    """The layout that all of the first lines have, with labels that recur."""
    lines = (line.strip() for _, line in TextFile(path, reading).lines())
    sample = [line for line in islice(lines, SAMPLE_LINES) if line]
    if len(sample) < _FEWEST_LINES:
        return None
    for name, pattern in LAYOUTS.items():
        matches = [match for line in sample if (match := pattern.fullmatch(line))]
        labels = {match["label"] for match in matches}
        if len(matches) == len(sample) and len(labels) <= len(sample) / 2:
            return name
    return None


def _match(
    pattern: re.Pattern[str], line: str, shown: str, path: Path, number: int
) -> dict[str, Any]:
    match = pattern.fullmatch(line.strip())
    if match is None:
        raise CORRUPT_FILE.error(
            f"{path.name}, line {number}: does not match {shown}: {line.strip()[:60]!r}",
            fix="Correct the named line, or set read.pattern to a pattern that all lines match.",
            file=str(path),
            line=number,
        )
    return match.groupdict()


def _has_several_labels(path: Path, reading: Reading) -> bool:
    """Whether any line starts with two labels; then all rows get a list of labels."""
    two = re.compile(r"\s*__label__\S+\s+__label__")
    return any(two.match(line) for _, line in TextFile(path, reading).lines())
