"""JSON lines: one object per line; every error names its line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

from surefit.config import Reading
from surefit.data.data_rules import NOT_UTF8
from surefit.data.formats.opened import bad_line
from surefit.data.formats.text_decoding import TextFile
from surefit.data.formats.text_lines import Records
from surefit.data.stored_messages import storable
from surefit.errors import FindingError
from surefit.findings import Finding, note, rule

ROW_NOT_UTF8 = rule(
    "SF273",
    "warning",
    "row with text that is not UTF-8",
    why="Text in the wrong encoding trains the model on noise, so it is treated as missing.",
    fix="Write the named line as UTF-8.",
    accept="The text is treated as missing.",
)

TWIN_KEYS = rule(
    "SF840",
    "warning",
    "key twice in a JSON object",
    why="An object has one value for a key: the last one is used, and the others are lost.",
    fix="Write each key once; give different values different keys.",
    accept="The last value of the key is used.",
)

MOST_BROKEN = 0.2
"""If a larger share of rows is not UTF-8, the file as a whole is not UTF-8."""
MAX_DEPTH = 64
"""How deep lists and objects may be nested in a row."""
_NESTED = frozenset((list, dict))
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


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
        except (ValueError, RecursionError) as error:  # also for numbers that are too long
            what = f"not valid JSON ({error}): {line.strip()[:60]!r}"
            raise bad_line(path, number, what) from None
        if not isinstance(value, dict):
            raise no_object(path, number, value)
        reader.check(value, number, line.count("[") + line.count("{"))
        yield number, value
    yield from file.findings
    yield from reader.findings()


def no_object(path: Path, line: int, value: Any) -> FindingError:
    """Return the error about a value in a JSON file that is not a row."""
    found = f"{type(value).__name__}: {json.dumps(value)[:60]!r}"
    return bad_line(path, line, f'expected an object such as {{"prompt": …}}, found {found}')


class JsonReader:
    """Decodes the values of one file and remembers the keys that occur twice in an object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.decoder = json.JSONDecoder(object_pairs_hook=self._object)
        self._twins: list[str] = []
        self._unnamed: list[str] = []
        self._first: tuple[int, str] | None = None
        self._count = 0

    def check(self, value: Any, line: int, num_opened: int) -> None:
        """Note twin keys in the value of a line; refuse it if it is too deep, or a key is no text.

        `num_opened` counts the brackets in the text; with a few, no value is deep.
        """
        if self._twins:
            self._first = self._first or (line, self._twins[0])
            self._count += 1
            self._twins.clear()
        for key in self._unnamed:
            self.check_key(key, line)
        if num_opened > MAX_DEPTH and is_deeper(value, MAX_DEPTH):
            raise bad_line(self.path, line, f"nested deeper than {MAX_DEPTH} levels.")

    def check_key(self, key: str, line: int) -> None:
        """Refuse a key that cannot be the name of a column."""
        if _LONE_SURROGATE.search(key):
            raise bad_line(self.path, line, f"the key {key!r} is not UTF-8.", rule=NOT_UTF8)

    def findings(self) -> Iterator[Finding]:
        """Yield the finding about twin keys, once all rows have been read."""
        if self._first is None:
            return
        line, key = self._first
        more = f" ({self._count - 1} more rows like it)" if self._count > 1 else ""
        message = f"{self.path.name}, line {line}: the key {key!r} occurs twice{more}."
        yield TWIN_KEYS.finding(message, file=str(self.path), line=line, column=key)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            keys = [key for key, _ in pairs]
            self._twins += [key for place, key in enumerate(keys) if key in keys[:place]]
        if not all(map(str.isascii, made)):
            self._unnamed += filter(_LONE_SURROGATE.search, made)
        return made


def is_deeper(value: Any, levels: int) -> bool:
    """Return whether lists and objects are nested deeper than so many levels.

    >>> is_deeper([[1]], 2), is_deeper([[1]], 1)
    (False, True)
    """
    layer = [value] if type(value) in _NESTED else []
    for _ in range(levels):
        inner: list[Any] = []
        for each in layer:
            values = each.values() if isinstance(each, dict) else each
            if not _NESTED.isdisjoint(map(type, values)):  # most lists are flat
                inner += [value for value in values if type(value) in _NESTED]
        layer = inner
    return bool(layer)


def _without_broken(records: Records, file: TextFile) -> Records:
    """Yield the records, with a warning about text that is not UTF-8, which becomes missing."""
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
    """Return the value with None instead of text that was not UTF-8."""
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


Row = dict[str, Any]


def flatten(records: Records, path: Path) -> Records:
    """Yield the records, with nested ones flattened; the first of each kind is reported.

    Dialogues stay in their row, converted to one type.
    """
    reported: set[str] = set()
    for record in records:
        if isinstance(record, Finding):
            yield record
            continue
        number, row = record
        found = ((kind, expand(row)) for kind, expand in KINDS.items())
        kind, rows = next((each for each in found if each[1] is not None), ("", None))
        if rows is None:
            yield number, {name: storable(value) for name, value in row.items()}
            continue
        for flat in rows:
            if kind not in reported:
                reported.add(kind)
                message = f"{path.name}: {kind}; the columns are {', '.join(flat)}."
                yield note(message, file=str(path), line=number)
            yield number, flat


def _is_list_of_objects(value: Any) -> TypeGuard[list[Row]]:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _instances(row: Row) -> Iterable[Row] | None:
    """One row per instance; a task without instances keeps its row, which counts as empty."""
    instances = row.get("instances")
    if not _is_list_of_objects(instances) or not all("output" in each for each in instances):
        return None
    rest = {name: value for name, value in row.items() if name != "instances"}
    return [{**rest, **each} for each in instances or [{"input": None, "output": None}]]


def _questions(row: Row) -> Iterable[Row] | None:
    """One row per question, with its title and context."""
    inner = next((n for n in ("paragraphs", "qas") if _is_list_of_objects(row.get(n))), None)
    if inner is None:
        return None
    rest = {name: value for name, value in row.items() if name != inner}
    parts = [{**rest, **part} for part in row[inner]]
    found = [(part, _questions(part)) for part in parts]
    return [each for part, inside in found for each in ([part] if inside is None else inside)]


KINDS: dict[str, Callable[[Row], Iterable[Row] | None]] = {
    "each instance becomes a row": _instances,
    "each question becomes a row, with its context and answers": _questions,
}
"""What is flattened, and the function that does it; None for rows of another form."""
