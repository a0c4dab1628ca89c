"""JSON lines: one object per line, every fault named by its line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from surefit.config import Reading
from surefit.data.nested import flatten
from surefit.data.records import Record
from surefit.data.text import numbered_lines
from surefit.findings import Finding, fail


def read_records(path: Path, reading: Reading, notes: list[Finding]) -> Iterator[Record]:
    """Line number and object of every line that is not blank; nested examples one by one."""
    return flatten(_objects(path, reading, notes), path, notes)


def _objects(path: Path, reading: Reading, notes: list[Finding]) -> Iterator[Record]:
    for number, line in numbered_lines(path, reading, notes):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:  # ValueError: also a number too long to read
            raise fail(
                "SF102",
                f"{path.name}, line {number}: not valid JSON ({error}): {line.strip()[:60]!r}",
                file=str(path),
                line=number,
            ) from None
        if not isinstance(value, dict):
            raise fail(
                "SF102",
                f"{path.name}, line {number}: expected an object such as "
                f'{{"prompt": …}}, found {type(value).__name__}: {line.strip()[:60]!r}',
                file=str(path),
                line=number,
            )
        yield number, value
