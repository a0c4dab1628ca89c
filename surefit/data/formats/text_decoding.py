"""Text files, decoded; gzip is unpacked, and errors name the line."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from surefit.config import Reading
from surefit.data.data_rules import CORRUPT_FILE, NOT_UTF8
from surefit.data.formats.opened import bad_file, bad_line
from surefit.errors import FindingError, UsageError
from surefit.findings import Finding, rule

READ_AS_WINDOWS_1252 = rule(
    "SF111",
    "fixed",
    "read as Windows-1252",
    why="The text is not UTF-8, but valid Windows-1252 (latin-1 with a few more characters).",
    fix="Nothing to do, or set read.encoding to another encoding.",
)


LINE_TOO_LONG = rule(
    "SF842",
    "error",
    "line too long",
    why="A row is held in memory as a whole; a small compressed file can hold a line of gigabytes.",
    fix="Split the line into rows, or save arrays as .npy or .safetensors.",
)


BYTE_ORDER_MARK = b"\xef\xbb\xbf"
WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")
CODE = (".py", ".ipynb", ".yaml", ".yml", ".toml", ".sh")
CHUNK_BYTES = 1 << 20
_PEEK_BYTES = 64 * 1024
MAX_LINE_BYTES = 1 << 26
"""The longest line, cell or JSON value that is read; a row of text hardly has a thousandth."""
_NOT_WESTERN = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f\x81\x8d\x8f\x90\x9d\xff]")
GZIP_FAULTS = (EOFError, zlib.error, gzip.BadGzipFile)


class TextFile:
    """A text file, decoded line by line or in chunks; a byte order mark is skipped.

    The encoding is `reading.encoding`, else UTF-8, else Windows-1252 with a finding.
    """

    def __init__(self, path: Path, reading: Reading) -> None:
        self.path = path
        self.reading = reading
        self.findings: tuple[Finding, ...] = ()
        """What was found while the text was read; complete once all of it was read."""
        self.broken: dict[int, FindingError] = {}
        """The lines that are not UTF-8, with the error of each, if they are kept."""

    def lines(self, keep_broken: bool = False) -> Iterator[tuple[int, str]]:
        """Line number (from 1) and text of each line.

        With `keep_broken`, a line that is not UTF-8 is recorded in `broken` and returned with lone
        surrogates for the invalid bytes.
        """
        encoding = _wide_encoding(self.path, self.reading)
        if encoding is not None:
            yield from enumerate(_wide_lines(self.path, encoding), start=1)
            return
        decoder = _Decoder(self.path, self.reading.encoding, whole_file=not keep_broken)
        for number, raw in enumerate(raw_lines(self.path), start=1):
            try:
                text = decoder.decode(raw, number)
            except FindingError as fault:
                if not keep_broken or self.reading.encoding is not None or b"\0" in raw:
                    raise
                self.broken[number] = fault
                text = raw.decode("utf-8", "surrogateescape")
            self.findings = decoder.findings
            yield number, text

    def chunks(self) -> Iterator[str]:
        """Yield the text in chunks of about a megabyte, decoded as its lines would be."""
        encoding = _wide_encoding(self.path, self.reading)
        if encoding is not None:
            yield from _wide_lines(self.path, encoding)
            return
        decoder = _Decoder(self.path, self.reading.encoding)
        number, rest = 1, b""
        with open_bytes(self.path) as file:
            while chunk := file.read(CHUNK_BYTES):
                chunk = rest + chunk
                cut = len(chunk)  # before a character that may continue in the next chunk
                while cut > len(chunk) - 4 and cut and chunk[cut - 1] >= 0x80:
                    cut -= 1
                chunk, rest = chunk[:cut], chunk[cut:]
                text = decoder.decode(chunk, number)
                self.findings = decoder.findings
                yield text
                number += chunk.count(b"\n")
        text = decoder.decode(rest, number)
        self.findings = decoder.findings
        yield text


def is_text_file(path: Path) -> bool:
    """Return whether a file starts with text, and its ending is not one of source code."""
    if path.suffix in CODE:
        return False
    with open_bytes(path) as file:
        head = file.read(_PEEK_BYTES)
    head = head[: head.rfind(b"\n") + 1] or head
    try:
        _Decoder(path, None).decode(head, 1)
    except FindingError:
        return False
    return True


@dataclass
class _Decoder:
    """Bytes to text; the first non-ASCII bytes decide between UTF-8 and Windows-1252."""

    path: Path
    encoding: str | None
    whole_file: bool = True
    """Whether all lines have one encoding, so that the first non-ASCII line decides it."""
    found: tuple[str, int] | None = field(default=None, init=False)
    findings: tuple[Finding, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        if self.encoding is not None:
            _check_encoding(self.encoding)
            self.found = (self.encoding, 1)

    def decode(self, raw: bytes, number: int) -> str:
        """Return the text of `raw`, which starts in line `number`."""
        if number == 1 and raw.startswith(BYTE_ORDER_MARK):
            raw = raw[len(BYTE_ORDER_MARK) :]
        if self.encoding is None and b"\0" in raw:
            raise self._fail(raw, raw.index(b"\0"), number, "is not text")
        if raw.isascii() and self.encoding is None:
            return raw.decode("ascii")
        encoding, first = self.found or ("utf-8", number)
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError as error:
            if self.found is None and not self.whole_file:
                lines = (line for line in raw_lines(self.path) if not line.isascii())
                if any(line.decode("utf-8", "ignore").encode() == line for line in lines):
                    self.found = ("utf-8", number)
            if self.found is not None or not _is_western(raw):
                reason = f"is not {encoding.upper()}"
                raise self._fail(raw, error.start, number, reason) from None
            return self._decode_western(raw, error.start, number)
        if encoding == "cp1252" and self.encoding is None and not _is_western(raw):
            place = next(place for place, byte in enumerate(raw) if byte >= 0x80)
            reason = f"is neither UTF-8 nor, as line {first} is, Windows-1252"
            raise self._fail(raw, place, number, reason)
        self.found = (encoding, first)
        return text

    def _decode_western(self, raw: bytes, start: int, number: int) -> str:
        line = number + raw.count(b"\n", 0, start)
        self.found = ("cp1252", line)
        western = raw[start : start + 1].decode("cp1252")
        message = (
            f"{self.path.name}, line {line}: byte 0x{raw[start]:02x} is not UTF-8; the file is "
            f"read as Windows-1252 (latin-1), where it is {western!r}."
        )
        self.findings = (READ_AS_WINDOWS_1252.finding(message, file=str(self.path), line=line),)
        return raw.decode("cp1252")

    def _fail(self, raw: bytes, start: int, number: int, reason: str) -> FindingError:
        line = number + raw.count(b"\n", 0, start)
        begin = raw.rfind(b"\n", 0, start) + 1
        what = f"byte 0x{raw[start]:02x} at position {start - begin} {reason}."
        return bad_line(self.path, line, what, rule=NOT_UTF8)


def _is_western(raw: bytes) -> bool:
    """Return whether bytes are plausible Windows-1252: mostly ASCII, no control characters.

    >>> _is_western(b"caf\\xe9 au lait"), _is_western("Привет, мир".encode("cp1251"))
    (True, False)
    """
    # any valid multi-byte character of UTF-8 is rare in other encodings
    if _NOT_WESTERN.search(raw) or not raw.decode("utf-8", "ignore").isascii():
        return False
    letters = len(raw) - sum(raw.count(space) for space in b" \t\r\n")
    return sum(byte >= 0x80 for byte in raw) <= max(3, 0.4 * letters)


def _check_encoding(encoding: str) -> None:
    try:
        "".encode(encoding)
    except LookupError:
        raise UsageError(
            f"read.encoding is {encoding!r}, which Python does not know.", "Use utf-8 or latin-1."
        ) from None


def _wide_encoding(path: Path, reading: Reading) -> str | None:
    """Return the encoding of text whose line ends take several bytes, such as UTF-16; else None."""
    if reading.encoding is not None:
        _check_encoding(reading.encoding)
        return reading.encoding if len("\n".encode(reading.encoding)) > 1 else None
    with open_bytes(path) as file:
        return "utf-16" if file.read(2) in WIDE_MARKS else None


def _wide_lines(path: Path, encoding: str) -> Iterator[str]:
    number = 0
    with open_bytes(path) as file:
        lines = io.TextIOWrapper(file, encoding, newline="\n")
        try:
            while line := lines.readline(MAX_LINE_BYTES):
                number += 1
                if len(line) == MAX_LINE_BYTES and not line.endswith("\n"):
                    raise too_long(path, number)
                yield line
        except UnicodeError as error:
            what = f"not {encoding.upper()} ({error})."
            raise bad_line(path, number + 1, what, rule=NOT_UTF8) from None


def raw_lines(path: Path) -> Iterator[bytes]:
    """Yield lines as bytes, unpacked if the file is a gzip."""
    number = offset = 0
    with open_bytes(path) as file:
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                raise too_long(path, number, f", which starts at byte {offset:,},")
            offset += len(line)
            yield line


def too_long(path: Path, line: int, place: str = "") -> FindingError:
    """Return error about a line, or a value that starts in it, of more than `MAX_LINE_BYTES`."""
    message = f"{path.name}, line {line}{place} has more than {MAX_LINE_BYTES >> 20} MB."
    return LINE_TOO_LONG.error(message, file=str(path), line=line)


def is_gzip(path: Path) -> bool:
    """Return whether the first two bytes of a file are those of a gzip."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, unpacked if it is a gzip; one that is truncated or invalid is an error."""
    try:
        with gzip.open(path) if is_gzip(path) else path.open("rb") as file:
            yield cast(IO[bytes], file)
    except GZIP_FAULTS as error:
        raise bad_file(path, f" is a damaged gzip: {error}", CORRUPT_FILE.fix) from None
