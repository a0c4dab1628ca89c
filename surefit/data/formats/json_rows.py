"""A JSON file to rows: a list of objects anywhere in the file, or lists that are columns.

It is read value by value through a window, so that a large file is never in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from surefit.config import Reading
from surefit.data.data_rules import FILES_DO_NOT_MATCH, unequal_rows
from surefit.data.formats import jsonl
from surefit.data.formats.jsonl import JsonReader, flatten
from surefit.data.formats.opened import bad_line
from surefit.data.formats.text_decoding import MAX_LINE_BYTES, TextFile, too_long
from surefit.data.formats.text_lines import Records
from surefit.errors import FindingError
from surefit.findings import note, rule

NO_ROWS_IN_JSON = rule(
    "SF115",
    "error",
    "no rows found in a JSON file",
    why="Rows are a list of objects, or one list per column, all of equal length.",
    fix="Set read.field to the path of the list, such as data or data.items.",
)


_SPACE = " \t\r\n"
_NOT_SPACE = re.compile(r"[^ \t\r\n]")
_NEAR_END = 32
"""An error this close to the end of the window may be a value that continues after it."""


def read_records(path: Path, reading: Reading) -> Records:
    """Line and row of each object; a file of JSON lines with this ending is read as such."""
    if reading.field is None and _is_lines(path, reading):
        return jsonl.read_records(path, reading)
    return flatten(_Reader(path, reading).rows(), path)


def _is_lines(path: Path, reading: Reading) -> bool:
    """Return whether the first line is a complete object and another one follows."""
    first, _, rest = next(TextFile(path, reading).chunks(), "").lstrip().partition("\n")
    if not rest.lstrip().startswith("{"):
        return False
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


class _Reader:
    """Reads one file once, from the beginning to the end."""

    def __init__(self, path: Path, reading: Reading) -> None:
        self.path, self.field = path, reading.field
        self.file = TextFile(path, reading)
        self.window = JsonWindow(self.file.chunks(), path)

    def rows(self) -> Records:
        """Yield the rows; then a check that the file ends after them."""
        if self.window.peek() == "":
            return
        if self.field is not None:
            yield from self._rows_at(self.field.split("."))
        else:
            yield from self._elements() if self.window.peek() == "[" else self._find_rows()
            if self.window.peek():
                raise self.window.fail("expected the end of the file")
        yield from self.file.findings
        yield from self.window.json.findings()

    def _rows_at(self, keys: list[str]) -> Records:
        """Yield the rows at read.field; the rest of the file is not read."""
        for depth, wanted in enumerate(keys):
            if self.window.peek() != "{":
                place = ".".join(keys[:depth]) or "the file"
                raise self._no_rows(f"read.field is {self.field!r}, but {place} is not an object")
            seen = []
            for key in self._keys():
                if key == wanted:
                    break
                seen.append(key)
                self.window.value()
            else:
                raise self._no_rows(
                    f"read.field is {self.field!r}; there is no {wanted!r} among "
                    f"{', '.join(seen)[:80] or 'no keys'}"
                )
        if self.window.peek() == "[":
            yield from self._elements()
        else:
            yield from self._column_rows(self.window.value(), self.window.line)

    def _find_rows(self) -> Records:
        """Yield the only list of objects in the top-level object; else its values as columns."""
        values: dict[str, Any] = {}
        found: str | None = None
        for key in self._keys():
            if not self.window.opens_objects():
                value = self.window.value()
                if found is None:
                    values[key] = value
            elif found is None:
                found = key
                message = f"{self.path.name}: the rows are the list under {key!r}."
                yield note(message, file=str(self.path))
                yield from self._elements()
            else:
                raise self._no_rows(f"there are two lists of objects, {found!r} and {key!r}")
        if found is None:
            yield from self._column_rows(values, 1)

    def _keys(self) -> Iterator[str]:
        """Yield the keys of an object; the caller reads the value of each."""
        self.window.take("{")
        if self.window.peek() == "}":
            self.window.take("}")
            return
        while True:
            if self.window.peek() != '"':
                raise self.window.fail("expected a key in double quotes")
            key = self.window.value()
            self.window.json.check_key(key, self.window.line)
            self.window.take(":")
            yield key
            ends = self.window.peek() == "}"
            self.window.take(",}")
            if ends:
                return

    def _elements(self) -> Records:
        self.window.take("[")
        if self.window.peek() == "]":
            self.window.take("]")
            return
        while True:
            self.window.peek()
            line, value = self.window.line, self.window.value()
            if isinstance(value, str):
                value = {"text": value}
            if not isinstance(value, dict):
                raise jsonl.no_object(self.path, line, value)
            yield line, value
            ends = self.window.peek() == "]"
            self.window.take(",]")
            if ends:
                return

    def _column_rows(self, columns: Any, line: int) -> Records:
        """Yield rows of an object of columns: lists, or objects from row name to value (pandas)."""
        if not isinstance(columns, dict):
            raise self._no_rows(f"expected a list of objects, found a {type(columns).__name__}")
        if columns and not any(isinstance(value, list | dict) for value in columns.values()):
            yield line, columns
            return
        lists = {
            name: list(value.values()) if isinstance(value, dict) else value
            for name, value in columns.items()
        }
        if not lists or not all(isinstance(value, list) for value in lists.values()):
            raise self._no_rows(f"the keys are {', '.join(columns)[:80] or 'none'}")
        counts = {name: len(value) for name, value in lists.items()}
        if len(set(counts.values())) > 1:
            message = f"{self.path.name}: {unequal_rows(counts)}"
            raise FILES_DO_NOT_MATCH.error(message, file=str(self.path))
        for values in zip(*lists.values(), strict=True):
            yield line, dict(zip(lists, values, strict=True))

    def _no_rows(self, what: str) -> FindingError:
        message = f"{self.path.name} holds no list of rows: {what}."
        return NO_ROWS_IN_JSON.error(message, file=str(self.path))


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
        """Return the next character that is not white space; empty at the end of the file."""
        while True:
            while self._place < len(self._text) and self._text[self._place] in _SPACE:
                self._place += 1
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._more():
                return ""

    def opens_objects(self) -> bool:
        """Return whether a list starts here whose first element is an object."""
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
        """Return the next complete value."""
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
        """Return an error at the current position, or at another one in the window."""
        place = self._place if place is None else place
        line = self.line + self._text.count("\n", self._place, place)
        return bad_line(self._path, line, f"{what}: {self._text[place : place + 40]!r}")

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
