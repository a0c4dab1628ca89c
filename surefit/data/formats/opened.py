"""What opening one file gives: its rows as Arrow columns, and what was found on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from surefit.core.files import write_json
from surefit.core.foreign import read_json
from surefit.data.arrow_types import map_arrow
from surefit.findings import Finding


@dataclass(frozen=True)
class Opened:
    """The rows of one file, and what was found or assumed while it was read."""

    arrow: pa.Table
    findings: tuple[Finding, ...] = ()


def write_findings(folder: Path, findings: Sequence[Finding]) -> None:
    """Keep what was found in a file beside its table."""
    write_json(folder / "findings.json", [asdict(found) for found in findings])


def read_opened(folder: Path) -> Opened:
    """Memory-map a table that was converted into `folder`, and read what was found then."""
    found = read_json(folder / "findings.json", list[Finding])
    return Opened(map_arrow(folder / "table.arrow"), tuple(found))
