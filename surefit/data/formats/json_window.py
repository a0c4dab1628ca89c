"""JSON read value by value through a window, so that a large file is never in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from surefit.data.data_rules import CORRUPT_FILE, NOT_UTF8
from surefit.data.formats.text_decoding import MAX_LINE_BYTES, too_long
from surefit.errors import FindingError
from surefit.findings import Finding, rule

_SPACE = " \t\r\n"
_NOT_SPACE = re.compile(r"[^ \t\r\n]")
_NEAR_END = 32
"""An error this close to the end of the window may be a value that continues after it."""


class JsonWindow:
    """The text from the current position on, as far as it has been read."""

    def __init__(self, chunks: Iterator[str], path: Path) -> None:
        self._chunks = chunks
        self._path = path
        self._text = ""
        self._place = 0
        self._line, self._counted = 1, 0
        self.json = JsonReader(path)

    @property
    def line(self) -> int:
        """The line of the current position."""
        self._line += self._text.count("\n", self._counted, self._place)
        self._counted = self._place
        return self._line

    def peek(self) -> str:
        """The next character that is not white space; empty at the end of the file."""
        while True:
            while self._place < len(self._text) and self._text[self._place] in _SPACE:
                self._place += 1
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._more():
                return ""

    def opens_objects(self) -> bool:
        """Whether a list starts here whose first element is an object."""
        if self.peek() != "[":
            return False
        while True:
            inner = _NOT_SPACE.search(self._text, self._place + 1)
            if inner is not None or not self._more():
                return inner is not None and inner[0] == "{"

    def take(self, expected: str) -> None:
        """Skip one of the expected characters."""
        found = self.peek()
        if not found or found not in expected:
            shown = " or ".join(repr(char) for char in expected)
            raise self.fail(f"expected {shown}, found {found or 'the end of the file'!r}")
        self._place += 1

    def value(self) -> Any:
        """The next complete value."""
        self.peek()
        while True:
            begin = self._place
            try:
                value, end = self.json.decoder.raw_decode(self._text, self._place)
            except json.JSONDecodeError as error:
                open_text = error.msg.startswith("Unterminated string")
                cut = open_text or error.pos >= len(self._text) - _NEAR_END
                if cut and len(self._text) - self._place > MAX_LINE_BYTES:
                    raise too_long(self._path, self.line) from None
                if not cut or not self._more(double=True):
                    place = self._place + error.pos - begin
                    raise self.fail(f"not valid JSON ({error.msg})", place) from None
                continue
            except (ValueError, RecursionError) as error:
                raise self.fail(f"not valid JSON ({error})") from None
            if end == len(self._text) and self._more():
                continue  # a number may continue
            opened = sum(self._text.count(char, begin, end) for char in "[{")
            self.json.check(value, self.line, opened)
            self._place += end - begin
            return value

    def fail(self, what: str, place: int | None = None) -> FindingError:
        """An error at the current position, or at another one in the window."""
        place = self._place if place is None else place
        line = self.line + self._text.count("\n", self._place, place)
        shown = self._text[place : place + 40]
        return CORRUPT_FILE.error(
            f"{self._path.name}, line {line}: {what}: {shown!r}",
            file=str(self._path),
            line=line,
        )

    def _more(self, double: bool = False) -> bool:
        """Drop the text that was read, and read another chunk, or as much again as is left."""
        self._line, self._counted = self.line, 0
        rest = self._text[self._place :]
        parts, wanted = [rest], len(rest) if double else 1
        while wanted > 0 and (chunk := next(self._chunks, None)) is not None:
            parts.append(chunk)
            wanted -= len(chunk)
        self._text, self._place = "".join(parts), 0
        return len(self._text) > len(rest)


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
