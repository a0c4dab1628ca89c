"""Tar files for tests, made in memory."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable


def tar_of(
    members: Iterable[tuple[str, bytes]],
    *others: tarfile.TarInfo,
    form: int = tarfile.PAX_FORMAT,
) -> bytes:
    """A tar file of members by name, and of other headers."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, content in members:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
        for header in others:
            archive.addfile(header)
    return buffer.getvalue()
