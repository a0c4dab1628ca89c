"""CSV to rows: the first line names the columns, numbers are recognised by whole columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from surefit.config import Reading
from surefit.data.records import Record
from surefit.data.text import numbered_lines
from surefit.findings import Finding, fail

_INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def read_records(path: Path, reading: Reading, notes: list[Finding]) -> Iterator[Record]:
    """Line number and row of each record; a blank cell is missing (None)."""
    kinds = _column_kinds(path, reading)
    for number, row in _text_rows(path, reading, notes):
        yield number, {name: _convert(cell, kinds[name]) for name, cell in row.items()}


def _column_kinds(path: Path, reading: Reading) -> dict[str, type]:
    """int, float or str for each column: the narrowest that every cell of it can be read as."""
    kinds: dict[str, type] = {}
    for _, row in _text_rows(path, reading, []):
        for name, cell in row.items():
            kind = kinds.setdefault(name, int)
            if cell and kind is int and not _INTEGER.fullmatch(cell):
                kind = kinds[name] = float
            if cell and kind is float and not _NUMBER.fullmatch(cell):
                kinds[name] = str
    return kinds


def _convert(cell: str, kind: type) -> Any:
    return kind(cell) if cell else None


def _text_rows(
    path: Path, reading: Reading, notes: list[Finding]
) -> Iterator[tuple[int, dict[str, str]]]:
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader((line for _, line in numbered_lines(path, reading, notes)), strict=True)
    try:
        names = next(reader, None)
        if names is None:
            return
        _check_header(path, names)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(names):
                raise fail(
                    "SF102",
                    f"{path.name}, line {reader.line_num}: {len(cells)} cells, but the header "
                    f"names {len(names)} columns ({', '.join(names)[:80]}).",
                    fix="Quote cells that contain commas or line breaks.",
                    file=str(path),
                    line=reader.line_num,
                )
            yield reader.line_num, dict(zip(names, cells, strict=True))
    except csv.Error as error:
        raise fail(
            "SF102",
            f"{path.name}, line {reader.line_num}: not valid CSV ({error}).",
            file=str(path),
            line=reader.line_num,
        ) from None


def _check_header(path: Path, names: list[str]) -> None:
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None or not all(name.strip() for name in names):
        fault = f"column {doubled!r} twice" if doubled else "a column without a name"
        raise fail(
            "SF102",
            f"{path.name}, line 1: the header has {fault}: {', '.join(names)[:80]}",
            fix="Give every column a name of its own in the first line.",
            file=str(path),
            line=1,
        )
