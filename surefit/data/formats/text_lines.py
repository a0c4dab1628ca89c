"""Text files to rows: one per line, with labels at the start of lines; several files together."""

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
from surefit.core.patterns import NoPatternError, matcher
from surefit.data.arrow_writer import ArrowWriter, ColumnFaultError
from surefit.data.cache import module_fingerprint
from surefit.data.data_rules import (
    CORRUPT_FILE,
    FILES_DO_NOT_MATCH,
    MAX_COLUMNS,
    check_expansion,
    too_many_columns,
)
from surefit.data.formats.opened import Opened, bad_line, converted, reading_key
from surefit.data.formats.text_decoding import TextFile
from surefit.data.table import CHUNK_ROWS
from surefit.data.written_values import describe_missing, markers_of
from surefit.errors import FindingError, UsageError
from surefit.findings import Finding, note, rule

TEXTS_OF_DIFFERENT_LENGTH = rule(
    "SF117",
    "warning",
    "two text files of different length",
    why="Source and target need the same number of lines; these files are concatenated instead.",
    fix="Align the files line by line if one is the translation of the other.",
    accept="The files are concatenated.",
)

EMPTY_FILE = rule(
    "SF439",
    "warning",
    "empty file among others",
    why="An empty file has no rows. Some programs write one for each empty part; it may also be "
    "what a program left that failed.",
    fix="Delete the file if it is meant to be empty; else write it again.",
    accept="The file is skipped; the others are read.",
)

SHOWN_FILES = 3
FORMAT_VERSION = 6

Record = tuple[int, dict[str, Any]]
"""The line number, and the values by column name."""


Records = Iterator[Record | Finding]
"""The records of a file in order, and what is found or inferred while they are read."""

ReadRecords = Callable[[Path, Reading], Records]


def open_records(read: ReadRecords, path: Path, reading: Reading, unit: str = "line") -> Opened:
    """Convert the records of a file into the cache once, then memory-map it.

    It is converted again when the file, its settings or the code of its reader changes. `unit` is
    what the numbers of the records count.
    """
    key = reading_key(path, reading, FORMAT_VERSION, module_fingerprint(read.__module__))
    records, markers = partial(read, path, reading), markers_of(reading)
    return converted(key, lambda target: _write(records, path, target, markers, unit))


def _write(
    read: Callable[[], Records], source: Path, target: Path, markers: Collection[str], unit: str
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
            rows = (row for _, row in records())
            while chunk := list(islice(rows, CHUNK_ROWS)):
                names = {*writer.schema.names}.union(*chunk)
                if len(names) > MAX_COLUMNS:
                    raise too_many_columns(str(source), len(names))
                writer.append_rows(chunk)
                check_expansion(source, target.stat().st_size)
    except ColumnFaultError as fault:
        raise _named(fault, records(), source, unit) from None
    return [*found, *describe_missing(writer.missing, "numbers", str(source))]


def _named(
    fault: ColumnFaultError, records: Iterator[Record], path: Path, unit: str
) -> FindingError:
    """Return the error, with the line numbers of its rows."""
    lines = {row: line for row, (line, _) in enumerate(_until_fault(records)) if row in fault.rows}
    message = f"{path.name}, {fault.message(unit, [lines[row] for row in fault.rows])}"
    first = fault.rows[0]
    where: dict[str, str | int] = {"file": str(path), "row": first}
    if unit == "line":
        where["line"] = lines[first]
    return fault.rule.error(message, where, column=fault.column)


def _until_fault(records: Iterator[Record]) -> Iterator[Record]:
    """Yield the records before the first one that cannot be read."""
    with suppress(FindingError):
        yield from records


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
    if reading.pattern is not None:
        yield from _by_pattern(path, reading, reading.pattern)
        return
    name = _find_layout(path, reading)
    pattern, shown = LAYOUTS.get(name or ""), f"the layout {name!r} of the earlier lines"
    if pattern is not None:
        columns = ", ".join(pattern.groupindex)
        message = f"{path.name}: lines are {name!r}; the columns are {columns}."
        yield note(message, file=str(path))
    two, several = re.compile(r"\s*__label__\S+\s+__label__"), False
    if pattern is LAYOUTS[FASTTEXT]:  # if any line has two labels, all rows get a list
        several = any(two.match(line) for _, line in TextFile(path, reading).lines())
    file = TextFile(path, reading)
    for number, line in file.lines():
        line = line.rstrip("\r\n")
        if pattern is None:
            yield number, {"text": line}
        elif line.strip():
            match = pattern.fullmatch(line.strip())
            if match is None:
                raise _no_match(path, number, line, shown)
            row: dict[str, Any] = match.groupdict()
            if pattern is LAYOUTS[FASTTEXT]:
                labels = [label.removeprefix("__label__") for label in row["label"].split()]
                row["label"] = labels if several else labels[0]
            yield number, row
    yield from file.findings


def _by_pattern(path: Path, reading: Reading, pattern: str) -> Records:
    """Line number and row of each line, which a pattern of the user's or of a run takes apart."""
    file = TextFile(path, reading)
    try:
        with matcher(pattern, "read.pattern") as found:
            if not found.names:
                raise UsageError(
                    f"read.pattern is {pattern!r}, which has no named groups.",
                    "Name the groups after the columns: (?P<label>\\w+) (?P<text>.*)",
                )
            lines = ((number, line.strip()) for number, line in file.lines() if line.strip())
            for number, line, groups in found.each(lines):
                if groups is None:
                    raise _no_match(path, number, line, f"read.pattern {pattern!r}")
                yield number, {name: groups[place] for name, place in found.names}
    except NoPatternError as error:
        raise UsageError(
            f"read.pattern is {pattern!r}: {error}.", "Write a regular expression."
        ) from None
    yield from file.findings


def _no_match(path: Path, number: int, line: str, shown: str) -> FindingError:
    what = f"does not match {shown}: {line.strip()[:60]!r}"
    fix = "Correct the named line, or set read.pattern to a pattern that all lines match."
    return bad_line(path, number, what, fix)


def _find_layout(path: Path, reading: Reading) -> str | None:
    """Return the layout that all of the first lines have, with labels that recur."""
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


def pair_texts(files: Sequence[Path], opened: Sequence[Opened]) -> tuple[Opened, ...]:
    """Two text files with the same number of lines as columns `source` and `target`.

    Others are returned unchanged with a warning, or refused if their names are a pair. An empty
    file has no column.
    """
    counts = [part.arrow.num_rows for part in opened]
    texts = all(part.arrow.column_names in (["text"], []) for part in opened)
    if len(files) != 2 or not texts or not any(counts):
        return tuple(opened)
    first, second = opened
    shown = f"{files[0].name} has {counts[0]} lines, {files[1].name} has {counts[1]}"
    if counts[0] == counts[1]:
        message = f"{shown}: they are read as source and target."
        joined = pa.table({"source": first.arrow["text"], "target": second.arrow["text"]})
        said = note(message, file=str(files[0]))
        before = [found for part in opened for found in part.findings if found.code]
        return (Opened(joined, (*before, said)),)
    if _stem(files[0]) == _stem(files[1]):
        raise FILES_DO_NOT_MATCH.error(
            f"{shown}; source and target must have the same number of lines.",
            fix="Align the files line by line.",
            file=str(files[1]),
            line=min(counts) + 1,
        )
    if not all(counts):
        return tuple(opened)
    said = TEXTS_OF_DIFFERENT_LENGTH.finding(f"{shown}: they are concatenated.", file=str(files[0]))
    return (first, Opened(second.arrow, (*second.findings, said)))


def _stem(path: Path) -> str:
    """Return the path without its endings: train.en.gz and train.de.gz have the same stem."""
    return Path(str(path).removesuffix(".gz")).stem


def label_texts(files: Sequence[Path], opened: Sequence[Opened]) -> list[Opened] | None:
    """Several files of lines with a column `label`, named after the files; None for others."""
    if len(files) < 2 or any(part.arrow.column_names != ["text"] for part in opened):
        return None
    names = class_names(files)
    shown = ", ".join(f"{name!r} from {file.name}" for name, file in zip(names, files, strict=True))
    said = note(f"The classes are {shown[:300]}.", file=str(files[0]))
    labelled = []
    for place, (part, name) in enumerate(zip(opened, names, strict=True)):
        label = pa.array([name]).cast(pa.string()).take(pa.array([0] * part.arrow.num_rows))
        found = [f for f in part.findings if f.code]
        notes = (said, *found) if place == 0 else tuple(found)
        labelled.append(Opened(part.arrow.append_column("label", label), notes))
    return labelled


def class_names(files: Sequence[Path]) -> list[str]:
    """Return what tells the names of the files apart, word by word from both ends.

    >>> class_names([Path("rt-polarity.pos"), Path("rt-polarity.neg")])
    ['pos', 'neg']
    >>> class_names([Path("spam.train.txt"), Path("ham.train.txt")])
    ['spam', 'ham']
    """
    names = [file.name.removesuffix(".gz") for file in files]
    names = [name.removesuffix(".txt") for name in names]
    words = [name.split(".") for name in names]
    while min(map(len, words)) > 1 and len({each[0] for each in words}) == 1:
        words = [each[1:] for each in words]
    while min(map(len, words)) > 1 and len({each[-1] for each in words}) == 1:
        words = [each[:-1] for each in words]
    found = [".".join(each) for each in words]
    return found if len({*found}) == len(files) else [str(file) for file in files]


def without_empty(
    files: Sequence[Path], opened: Sequence[Opened]
) -> tuple[list[Path], Sequence[Opened], list[Finding]]:
    """Return the files without those that are empty, or have a header only; all, if all are so."""
    whole = [(file, part) for file, part in zip(files, opened, strict=False) if part.arrow.schema]
    if not whole or len(whole) == len(opened):
        return list(files), opened, []
    empty = [f for f, part in zip(files, opened, strict=True) if not part.arrow.schema]
    shown = ", ".join(file.name for file in empty[:SHOWN_FILES])
    shown += f" and {len(empty) - SHOWN_FILES:,} more" if len(empty) > SHOWN_FILES else ""
    message = f"{len(empty):,} of {len(files):,} files have no rows and are skipped: {shown}."
    note = EMPTY_FILE.finding(message, file=str(empty[0]))
    return [file for file, _ in whole], [part for _, part in whole], [note]
