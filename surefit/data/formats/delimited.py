"""Delimited text (CSV, TSV) to rows; the type of a column is inferred from all its cells."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.config import Reading
from surefit.data.data_rules import CORRUPT_FILE
from surefit.data.formats.delimited_layout import (
    TABLE_LAYOUT_INFERRED,
    DelimitedLayout,
    find_layout,
)
from surefit.data.formats.number_columns import Cells, infer_columns
from surefit.data.formats.text_decoding import TextFile
from surefit.data.formats.text_records import Records
from surefit.findings import Finding

if TYPE_CHECKING:
    from _csv import Reader


def read_csv(path: Path, reading: Reading) -> Records:
    """Line number and row of each record, separated by commas unless another delimiter fits."""
    return _read(path, ",", reading)


def read_tsv(path: Path, reading: Reading) -> Records:
    """Line number and row of each record, separated by tabs unless another delimiter fits."""
    return _read(path, "\t", reading)


def _read(path: Path, default: str, reading: Reading) -> Records:
    """A blank cell is missing (None)."""
    layout, found = find_layout(path, default, reading)
    yield from found
    names, rows, _ = _open_cells(TextFile(path, reading), layout)
    inferred = infer_columns(names, rows)
    yield from inferred.findings(path)
    file = TextFile(path, reading)
    names, rows, found = _open_cells(file, layout)
    yield from found
    kinds = [column.kind for column in inferred.columns]
    for line, cells in rows:
        yield line, dict(zip(names, map(_convert, cells, kinds), strict=True))
    yield from file.findings


def _convert(cell: str, kind: type) -> Any:
    if kind is str:
        return cell or None
    return kind(cell) if cell and not cell.isspace() else None


def _open_cells(
    file: TextFile, layout: DelimitedLayout
) -> tuple[Sequence[str], Iterator[Cells], list[Finding]]:
    """Column names, line number and cells of each row, and findings about the names."""
    reader = layout.reader(line for _, line in file.lines())
    found: list[Finding] = []
    names: Sequence[str] | None = layout.names
    if names is None:
        with _named_line(file.path, reader):
            names, found = _read_header(file.path, next(filter(None, reader), []))
    return names, _rows(file.path, reader, names, layout), found


def _rows(
    path: Path, reader: Reader, names: Sequence[str], layout: DelimitedLayout
) -> Iterator[Cells]:
    with _named_line(path, reader) as row:
        for cells in reader:
            if cells and len(cells) != len(names):
                raise _other_width(path, row.lines(reader), len(cells), names, layout)
            if cells:
                yield reader.line_num, cells
            row.first_line = reader.line_num + 1


@dataclass
class _Row:
    """Where the row that is being read starts; a cell in quotes can go on for many lines."""

    first_line: int

    def lines(self, reader: Reader) -> range:
        """The lines of the row so far."""
        return range(self.first_line, reader.line_num + 1)


@contextmanager
def _named_line(path: Path, reader: Reader) -> Iterator[_Row]:
    row = _Row(reader.line_num + 1)
    try:
        yield row
    except csv.Error as error:
        lines = row.lines(reader)
        first = lines.start
        opened = _quote_hint(lines)
        message = f"{path.name}, line {first}: not valid CSV ({error}){opened}."
        raise CORRUPT_FILE.error(message, file=str(path), line=first) from None


def _quote_hint(lines: range) -> str:
    """What the error about a row of several lines adds: a quote joins them."""
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
        found.append(TABLE_LAYOUT_INFERRED.finding(message, file=str(path), line=1))
    name, count = Counter(names).most_common(1)[0]
    if count > 1 or not all(name.strip() for name in names):
        fault = f"column {name!r} twice" if count > 1 else "a column without a name"
        raise CORRUPT_FILE.error(
            f"{path.name}, line 1: the header has {fault}: {', '.join(names)[:80]}",
            fix="Give every column its own name in the first line.",
            file=str(path),
            line=1,
        )
    return names, found


def _other_width(
    path: Path, lines: range, width: int, names: Sequence[str], layout: DelimitedLayout
) -> Exception:
    line = lines.start
    source = "the header names" if layout.names is None else "there are"
    shown = ", ".join(names)[:80]
    return CORRUPT_FILE.error(
        f"{path.name}, line {line}: {width} cells, but {source} {len(names)} columns ({shown})"
        f"{_quote_hint(lines)}.",
        fix=f"Quote cells that contain {layout.delimiter!r} or line breaks, or set read.delimiter.",
        file=str(path),
        line=line,
    )
