"""Lines of a text file, decoded strictly, with their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from surefit.findings import fail


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line number (from 1) and text of each line of a UTF-8 file; a byte-order mark is skipped."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if number == 1 and raw.startswith(b"\xef\xbb\xbf"):
                raw = raw[3:]
            try:
                yield number, raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise fail(
                    "SF105",
                    f"{path.name}, line {number}: byte 0x{raw[error.start]:02x} at position "
                    f"{error.start} is not UTF-8.",
                    file=str(path),
                    line=number,
                ) from None
