"""JSON values as rows need them: not too deep, and no key twice without a word."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from surefit.data.data_rules import CORRUPT_FILE, NOT_UTF8
from surefit.findings import Finding, rule

TWIN_KEYS = rule(
    "SF840",
    "warning",
    "key twice in a JSON object",
    why="An object has one value for a key: the last one is used, and the others are lost.",
    fix="Write each key once; give different values different keys.",
    accept="The last value of the key is used.",
)

MAX_DEPTH = 64
"""How deep lists and objects may be nested in a row."""
_NESTED = frozenset((list, dict))
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


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
            message = f"{self.path.name}, line {line}: nested deeper than {MAX_DEPTH} levels."
            raise CORRUPT_FILE.error(message, file=str(self.path), line=line)

    def check_key(self, key: str, line: int) -> None:
        """Refuse a key that cannot be the name of a column."""
        if _LONE_SURROGATE.search(key):
            message = f"{self.path.name}, line {line}: the key {key!r} is not UTF-8."
            raise NOT_UTF8.error(message, file=str(self.path), line=line)

    def findings(self) -> Iterator[Finding]:
        """The finding about twin keys, once all rows have been read."""
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
    """Whether lists and objects are nested deeper than so many levels.

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
