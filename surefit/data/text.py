"""Lines of a text file, decoded strictly, with their numbers; gzip is unpacked on the way."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from surefit.config import Reading
from surefit.errors import UsageError
from surefit.findings import Finding, fail

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def numbered_lines(path: Path, reading: Reading, notes: list[Finding]) -> Iterator[tuple[int, str]]:
    """Line number (from 1) and text of each line; a byte-order mark is skipped.

    Text is UTF-8 unless `reading.encoding` says otherwise; bytes that are not are a Finding.
    """
    encoding = reading.encoding or "utf-8"
    try:
        "".encode(encoding)
    except LookupError:
        raise UsageError(
            f"read.encoding is {encoding!r}, which is no encoding.", "Use utf-8 or latin-1."
        ) from None
    for number, raw in enumerate(raw_lines(path), start=1):
        if number == 1 and raw.startswith(BYTE_ORDER_MARK):
            raw = raw[len(BYTE_ORDER_MARK) :]
        try:
            yield number, raw.decode(encoding)
        except UnicodeDecodeError as error:
            raise fail(
                "SF105",
                f"{path.name}, line {number}: byte 0x{raw[error.start]:02x} at position "
                f"{error.start} is not {encoding.upper()}.",
                file=str(path),
                line=number,
            ) from None


def raw_lines(path: Path) -> Iterator[bytes]:
    """Lines as bytes, from the file or from the gzip it is."""
    with open_bytes(path) as file:
        try:
            yield from file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise fail("SF102", f"{path.name} is a damaged gzip: {error}", file=str(path)) from None


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked if it is a gzip by its first two bytes."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if packed else path.open("rb")  # type: ignore[return-value]
