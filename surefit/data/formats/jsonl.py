"""JSON lines: one object per line; every error names its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from surefit.config import Reading
from surefit.data.data_rules import CORRUPT_FILE
from surefit.data.formats.json_values import JsonReader
from surefit.data.formats.nested_rows import flatten
from surefit.data.formats.text_decoding import TextFile
from surefit.data.formats.text_records import Records
from surefit.errors import FindingError
from surefit.findings import Finding, rule

ROW_NOT_UTF8 = rule(
    "SF273",
    "warning",
    "row with text that is not UTF-8",
    why="Text in the wrong encoding trains the model on noise, so it is treated as missing.",
    fix="Write the named line as UTF-8.",
    accept="The text is treated as missing.",
)


MOST_BROKEN = 0.2
"""If a larger share of rows is not UTF-8, the file as a whole is not UTF-8."""


def read_records(path: Path, reading: Reading) -> Records:
    """Line number and object of every non-blank line; nested examples one by one."""
    file = TextFile(path, reading)
    return _without_broken(flatten(_objects(file), path), file)


def _objects(file: TextFile) -> Records:
    path, reader = file.path, JsonReader(file.path)
    for number, line in file.lines(keep_broken=True):
        if not line.strip():
            continue
        try:
            value = reader.decoder.decode(line)
        except (
            ValueError,
            RecursionError,
        ) as error:  # ValueError: also for numbers that are too long
            raise CORRUPT_FILE.error(
                f"{path.name}, line {number}: not valid JSON ({error}): {line.strip()[:60]!r}",
                file=str(path),
                line=number,
            ) from None
        if not isinstance(value, dict):
            raise no_object(path, number, value)
        reader.check(value, number, line.count("[") + line.count("{"))
        yield number, value
    yield from file.findings
    yield from reader.findings()


def no_object(path: Path, line: int, value: Any) -> FindingError:
    """The error about a value in a JSON file that is not a row."""
    return CORRUPT_FILE.error(
        f'{path.name}, line {line}: expected an object such as {{"prompt": …}}, found '
        f"{type(value).__name__}: {json.dumps(value)[:60]!r}",
        file=str(path),
        line=line,
    )


def _without_broken(records: Records, file: TextFile) -> Records:
    """The records, with a warning about text that is not UTF-8, which becomes missing."""
    num_rows, rows, broken = 0, [], file.broken
    for record in records:
        if isinstance(record, Finding):
            yield record
            continue
        number, row = record
        if number in broken:
            row = _storable_text(row)
            rows.append((num_rows, number))
        num_rows += 1
        yield number, row
    if not rows:
        return
    (first, line), more = rows[0], len(rows) - 1
    if len(rows) > MOST_BROKEN * num_rows:
        raise broken[line]
    tail = f" ({more} more row{'s' if more > 1 else ''} like it)" if more else ""
    reason = broken[line].findings[0].message.partition(": ")[2].rstrip(".")
    message = f"row {first}: {reason}; the text is treated as missing{tail}"
    yield ROW_NOT_UTF8.finding(message, file=str(file.path), row=first, line=line)


def _storable_text(value: Any) -> Any:
    """The value with None instead of text that was not UTF-8."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            return None
        return value
    if isinstance(value, list):
        return [_storable_text(item) for item in value]
    if isinstance(value, dict):
        return {name: _storable_text(item) for name, item in value.items()}
    return value
