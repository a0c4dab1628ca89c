"""Delimited text (CSV, TSV) to rows; the type of a column is inferred from all its cells."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

import pyarrow as pa

from surefit.config import Reading
from surefit.core.files import remove_file
from surefit.data.arrow_types import map_arrow
from surefit.data.cache import module_fingerprint
from surefit.data.data_rules import MAX_COLUMNS, check_expansion, too_many_columns
from surefit.data.formats.number_columns import Place, infer_columns
from surefit.data.formats.opened import Opened, bad_line, converted, reading_key
from surefit.data.formats.text_decoding import MAX_LINE_BYTES, TextFile
from surefit.data.table import CHUNK_ROWS
from surefit.data.written_values import MISSING_MARKERS, NUMBER, is_missing, markers_of
from surefit.errors import UsageError
from surefit.findings import Finding, note, rule

if TYPE_CHECKING:
    from _csv import Reader


UNUSED_DELIMITER = rule(
    "SF217",
    "error",
    "delimiter not in the file",
    why="Every line would be read as a single cell.",
    fix="Set read.delimiter to the delimiter of the file, or remove it.",
)


DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "pipe"}
SAMPLE_LINES = 500
SAMPLE_CHARACTERS = 4_000_000
_QUOTED = re.compile(r'"([^"]|"")*"')
_YEARS_FROM = 1900

Rows = list[list[str]]
Row = tuple[range, list[str]]
"""The lines of a row, and its cells."""


@dataclass(frozen=True)
class DelimitedLayout:
    """How cells are separated; `names` are the columns of a file without a header line."""

    delimiter: str
    quoting: bool
    names: tuple[str, ...] | None

    def reader(self, lines: Iterable[str]) -> Reader:
        """Return a reader of the cells of each row."""
        return _reader(lines, self.delimiter, self.quoting, strict=True)


def _reader(lines: Iterable[str], delimiter: str, quoting: bool, strict: bool) -> Reader:
    if quoting:
        return csv.reader(lines, delimiter=delimiter, strict=strict)
    return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)


def find_layout(
    path: Path, default: str, reading: Reading
) -> tuple[DelimitedLayout, list[Finding]]:
    """Return layout of a file whose ending suggests the delimiter `default`; what was inferred."""
    found: list[Finding] = []
    csv.field_size_limit(MAX_LINE_BYTES)
    lines = _sample_lines(path, reading)
    delimiter = _chosen_delimiter(reading) or _find_delimiter(lines, default)
    _check_delimiter(path, lines, delimiter)
    if delimiter != default and reading.delimiter is None:
        message = f"{path.name}: cells are separated by {DELIMITERS[delimiter]}s."
        found.append(note(message, file=str(path)))
    quoting = delimiter == "," or not _has_stray_quotes(path, delimiter, reading)
    if not quoting:
        message = f"{path.name}: quotes are read as part of the text, and every line as one row."
        found.append(note(message, file=str(path)))
    rows = _sample_rows(lines, delimiter, quoting)
    if rows and len(rows[0]) > MAX_COLUMNS:
        raise too_many_columns(str(path), len(rows[0]), line=1)
    if reading.names:
        headed = bool(rows) and tuple(rows[0]) == reading.names
        return DelimitedLayout(delimiter, quoting, None if headed else reading.names), found
    reason = _looks_like_data(rows)
    if reason is None:
        return DelimitedLayout(delimiter, quoting, None), found
    names = _name_columns(rows)
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    message = f"{path.name} has no header line ({reason}); the columns are named {shown}."
    found.append(note(message, file=str(path), line=1))
    return DelimitedLayout(delimiter, quoting, names), found


def _chosen_delimiter(reading: Reading) -> str | None:
    if reading.delimiter is None:
        return None
    named = {name: char for char, name in DELIMITERS.items()} | {"\\t": "\t"}
    delimiter = named.get(reading.delimiter, reading.delimiter)
    if len(delimiter) != 1 or delimiter in '\r\n"':
        raise UsageError(
            f"read.delimiter is {reading.delimiter!r}; expected one character.",
            f"Use {', '.join(DELIMITERS.values())} or another single character.",
        )
    return delimiter


def _check_delimiter(path: Path, lines: Sequence[str], delimiter: str) -> None:
    """Refuse a delimiter that no line has if another one splits every line equally."""
    if any(delimiter in line for line in lines):
        return
    better = next((d for d in DELIMITERS if _share_of_equal_rows(lines, d) == 1), None)
    if better is not None:
        width = len(_sample_rows(lines, better)[0])
        raise UNUSED_DELIMITER.error(
            f"{path.name}: no line has the delimiter {delimiter!r}, but {DELIMITERS[better]}s "
            f"split each line into {width} cells.",
            fix=f"Leave read.delimiter out: a {DELIMITERS[better]} is recognised.",
            file=str(path),
        )


def _sample_lines(path: Path, reading: Reading) -> list[str]:
    lines: list[str] = []
    room = SAMPLE_CHARACTERS
    for _, line in TextFile(path, reading).lines():
        lines.append(line)
        room -= len(line)
        if room < 0 or len(lines) == SAMPLE_LINES:
            break
    return lines


def _sample_rows(lines: Sequence[str], delimiter: str, quoting: bool = True) -> Rows:
    try:
        rows = [row for row in _reader(lines, delimiter, quoting, strict=False) if row]
    except csv.Error:
        return []
    # The sample may end within a quoted cell, which makes the last row too short or too long.
    return rows[:-1] if len(rows) > 50 else rows


def _find_delimiter(lines: Sequence[str], default: str) -> str:
    """The default if it splits most rows like the first; else the one that splits nearly all so."""
    share = _share_of_equal_rows(lines, default)
    if share >= 0.5:
        return default
    others = {d: _share_of_equal_rows(lines, d) for d in DELIMITERS if d != default}
    best = max(others, key=lambda d: others[d])
    return best if others[best] >= 0.9 else default


def _share_of_equal_rows(lines: Sequence[str], delimiter: str) -> float:
    rows = _sample_rows(lines, delimiter)
    if not rows or len(rows[0]) < 2:
        return 0.0
    return sum(len(row) == len(rows[0]) for row in rows) / len(rows)


def _has_stray_quotes(path: Path, delimiter: str, reading: Reading) -> bool:
    """Return whether quotes are unbalanced, and every line is one row without them."""
    stray, widths = False, Counter[int]()
    for _, line in TextFile(path, reading).lines():
        cells = line.rstrip("\r\n").split(delimiter)
        widths[len(cells)] += bool(line.strip())
        stray = stray or any(cell[:1] == '"' and not _QUOTED.fullmatch(cell) for cell in cells)
    return stray and widths.most_common(1)[0][1] >= 0.9 * widths.total()


def _looks_like_data(rows: Rows) -> str | None:
    """Why the first row cannot be a header, or None."""
    if not rows:
        return None
    first, rest = rows[0], [row for row in rows[1:] if row != rows[0] and len(row) == len(rows[0])]
    numbers = [cell for cell in first if NUMBER.fullmatch(cell)]
    if numbers and not _counts_up(numbers):
        return f"line 1 contains the number {numbers[0]}"
    for place, cell in enumerate(first):
        below = [row[place] for row in rest]
        if cell.strip() and not numbers and cell in below:
            return f"{cell[:40]!r} in line 1 occurs again in later lines"
        if below and len(cell.split()) > 8 and median(len(text.split()) for text in below) > 8:
            return f"line 1 contains the sentence {cell[:40]!r}"
    return None


def _counts_up(cells: Sequence[str]) -> bool:
    """Return whether numbers are plausible column names: 0, 1, 2 … or years."""
    if len(cells) < 2 or not all(cell.isdigit() for cell in cells):
        return False
    values = [int(cell) for cell in cells]
    consecutive = values == list(range(values[0], values[0] + len(values)))
    return consecutive and (values[0] == 0 or values[0] >= _YEARS_FROM)


def _name_columns(rows: Rows) -> tuple[str, ...]:
    """`text` for the longest texts, `label` for few short values, column_N for the others."""
    width = len(rows[0])
    names = [f"column_{place}" for place in range(width)]
    columns = list(zip(*(row for row in rows if len(row) == width), strict=True))
    words_in = [mean(len(cell.split()) for cell in cells) for cells in columns]
    wordy = {p: mean(map(len, cells)) for p, cells in enumerate(columns) if words_in[p] > 2}
    if wordy:
        names[max(wordy, key=lambda place: wordy[place])] = "text"
    few = [
        place
        for place, cells in enumerate(columns)
        if place not in wordy
        and len(set(cells)) <= max(2, 0.2 * len(cells))
        and max(map(len, cells)) <= 40
    ]
    words = [place for place in few if not all(map(_is_number, columns[place]))]
    if wordy and few:
        names[few[0]] = "label"
    elif len(words) == 1:
        names[words[0]] = "label"
    return tuple(names)


def _is_number(cell: str) -> bool:
    """Return whether a cell may be in a column of numbers: a number, or a missing one."""
    return NUMBER.fullmatch(cell.strip()) is not None or is_missing(cell, MISSING_MARKERS | {""})


def open_cells(path: Path, reading: Reading, delimiter: str) -> Opened:
    """Return the rows of a file with this delimiter between cells, unless another one fits."""
    key = reading_key(path, reading, *map(module_fingerprint, (__name__, infer_columns.__module__)))
    return converted(key, lambda target: _write(path, delimiter, reading, target))


def _write(path: Path, default: str, reading: Reading, target: Path) -> list[Finding]:
    """Write the cells as text, infer the type of each column, and write them in these types."""
    layout, found = find_layout(path, default, reading)
    file, texts = TextFile(path, reading), target.with_name("texts.arrow")
    rows = _rows(path, layout.reader(line for _, line in file.lines()))
    names, named, headers = [*(layout.names or ())], list[Finding](), list[Place]()
    if layout.names is None:
        names, named = _read_header(path, next(rows, (range(1), []))[1])
    schema = pa.schema([*((str(n), pa.string()) for n in range(len(names))), ("line", pa.int64())])
    with pa.ipc.new_file(texts, schema) as writer:
        numbered = enumerate(_same_width(path, rows, names, layout))
        while chunk := list(islice(numbered, CHUNK_ROWS)):
            if len(names) > 1:
                headers += [(row, lines[-1]) for row, (lines, cells) in chunk if cells == names]
            columns = zip(*(cells for _, (_, cells) in chunk), strict=True)
            numbers = pa.array([lines[-1] for _, (lines, _) in chunk])
            arrays = [*(pa.array(column, pa.string()) for column in columns), numbers]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            check_expansion(path, texts.stat().st_size)
    written = map_arrow(texts)
    inferred = infer_columns(names, written, headers, markers_of(reading), reading.decimal)
    read = inferred.columns if inferred.num_rows else ()
    schema = pa.schema([(column.name, column.kind) for column in read])
    with pa.ipc.new_file(target, schema) as writer:
        for batch in written.to_batches() if read else ():
            arrays = [column.read(part) for column, part in zip(read, batch.columns, strict=False)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    remove_file(texts)
    return [*found, *inferred.findings(path), *named, *file.findings]


def _rows(path: Path, reader: Reader) -> Iterator[Row]:
    """Yield the lines and the cells of each row that is not blank."""
    first = 1
    try:
        for cells in reader:
            if cells:
                yield range(first, reader.line_num + 1), cells
            first = reader.line_num + 1
    except csv.Error as error:
        what = f"not valid CSV ({error}){_quote_hint(range(first, reader.line_num + 1))}."
        raise bad_line(path, first, what) from None


def _quote_hint(lines: range) -> str:
    """Return what the error about a row of several lines adds: a quote joins them."""
    if len(lines) < 2:
        return ""
    return f"; a quote that opens in line {lines.start} joins it to line {lines[-1]}"


def _read_header(path: Path, names: list[str]) -> tuple[list[str], list[Finding]]:
    found: list[Finding] = []
    if not names:
        return [], found
    if len(names) > 1 and not names[0].strip() and "index" not in names:  # pandas
        names = ["index", *names[1:]]
        message = f"{path.name}, line 1: the first column has no name; it is called index."
        found.append(note(message, file=str(path), line=1))
    name, count = Counter(names).most_common(1)[0]
    if count > 1 or not all(name.strip() for name in names):
        fault = f"column {name!r} twice" if count > 1 else "a column without a name"
        fix = "Give every column its own name in the first line."
        raise bad_line(path, 1, f"the header has {fault}: {', '.join(names)[:80]}", fix)
    return names, found


def _same_width(
    path: Path, rows: Iterable[Row], names: Sequence[str], layout: DelimitedLayout
) -> Iterator[Row]:
    """Yield the rows; one with more or fewer cells than there are columns is refused."""
    for lines, cells in rows:
        if len(cells) != len(names):
            source = "the header names" if layout.names is None else "there are"
            what = f"{len(cells)} cells, but {source} {len(names)} columns "
            what += f"({', '.join(names)[:80]}){_quote_hint(lines)}."
            fix = f"Quote cells that contain {layout.delimiter!r} or line breaks, or set "
            raise bad_line(path, lines.start, what, f"{fix}read.delimiter.")
        yield lines, cells
