"""Which files of a folder are its data."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from pathlib import Path

from surefit.data.formats.text_decoding import is_text_file

_ABOUT = re.compile(r"(readme|licen[cs]e|copying|copyright|notice|citation|changelog)\b.*", re.I)
_WEAK = (".json", ".txt")
"""Endings that settings and notes next to the data also have."""


def list_files(
    folder: Path, endings: Container[str], ending_of: Callable[[Path], str]
) -> list[Path]:
    """The files with a known ending, sorted by name.

    `.json`, then `.txt`, then other text files are used only if there are no others.
    """
    files = sorted(
        file
        for file in folder.iterdir()
        if file.is_file() and not file.name.startswith(".") and not _ABOUT.fullmatch(file.name)
    )
    strong = [f for f in files if ending_of(f) in endings and ending_of(f) not in _WEAK]
    weak = ([f for f in files if ending_of(f) == ending] for ending in _WEAK)
    return next(filter(None, (strong, *weak)), [f for f in files if is_text_file(f)])
