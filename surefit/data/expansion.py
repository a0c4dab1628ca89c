"""Small files that expand to gigabytes are refused while they are unpacked."""

from __future__ import annotations

import os
from pathlib import Path

from surefit.findings import rule

EXPANDS_TOO_MUCH = rule(
    "SF843",
    "error",
    "file that expands too much",
    why="A small compressed file can unpack to more than the disk has; usual data compresses less.",
    fix="Check where the file is from. If it is meant to be so, unpack it and pass the result.",
)

ALLOWED_BYTES = 4 << 30
"""What any file may unpack to, and beyond that so many times its own size:"""
ALLOWED_RATIO = 200


def check_expansion(source: str | Path, num_bytes: int) -> None:
    """Refuse a file that takes up so many bytes once it is unpacked."""
    if num_bytes <= ALLOWED_BYTES:
        return
    size = os.path.getsize(source) if os.path.isfile(source) else num_bytes
    if num_bytes > ALLOWED_RATIO * size:
        raise EXPANDS_TOO_MUCH.error(
            f"{Path(source).name} has {size:,} bytes and unpacks to more than {num_bytes:,}.",
            file=str(source),
        )
