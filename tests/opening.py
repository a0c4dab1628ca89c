"""Files for the tests of openers, and what opening them gives."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surefit.config import Reading
from surefit.data.open_data import open_table
from surefit.data.table import CHUNK_ROWS
from surefit.errors import FindingError
from surefit.findings import Finding

ODD = CHUNK_ROWS + 6
"""A row that is not in the first chunk."""

RAGGED = [np.full((steps, 2), steps, np.float32) for steps in (3, 0, 1, 5)]
FLAT = np.concatenate(RAGGED)
NAMES = np.array([4, 5, 6, 7])


def written(path: Path, content: str | bytes) -> Path:
    """The path, after writing to it; a gzip where it ends so."""
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def rows_of(data: Any, **reading: Any) -> list[dict[str, Any]]:
    """All rows of a file."""
    return list(open_table(data, Reading(**reading)).rows())


def notes_of(data: Any, **reading: Any) -> list[tuple[str, str]]:
    """Code and message of everything noted while a file was read."""
    return [(f.code, f.message) for f in open_table(data, Reading(**reading)).findings]


def fault_of(data: Any, **reading: Any) -> Finding:
    """The one fault that a file is refused for."""
    with pytest.raises(FindingError) as caught:
        open_table(data, Reading(**reading))
    (found,) = caught.value.findings
    return found


def entry_files(cache: Path) -> dict[Path, int]:
    """The files of the cache's entries, and when their content was written."""
    return {
        file: file.stat().st_mtime_ns
        for file in cache.glob("*/*/*")
        if file.name != "digests.json"  # touched when the entry is used
        if file.parent.parent.name != "hashes"  # digests of files that were read
    }
