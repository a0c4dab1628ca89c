"""JSON read value by value through a window, so that a large file is never in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from surefit.data.data_rules import CORRUPT_FILE
from surefit.data.formats.json_values import JsonReader
from surefit.data.formats.text_decoding import MAX_LINE_BYTES, too_long
from surefit.errors import FindingError

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
