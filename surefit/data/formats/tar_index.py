"""Where the members of a tar file are; nothing is unpacked, and no name leads out of it."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from surefit.data.data_rules import CORRUPT_FILE

HEADER_BYTES = 1 << 20
"""The longest name or extended header; tarfile would read one of any length into memory."""
MOST_MEMBERS = 20_000_000
BLOCK = 512
TAR_FAULTS = (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, IndexError)
_LONG = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


@dataclass(frozen=True)
class Member:
    """A file inside a tar file: its name, and the place of its bytes."""

    name: str
    offset: int
    size: int


@dataclass
class LeftOut:
    """How many members are not read, by the reason, with the first name of each."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, name: str) -> None:
        """Count one more."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.first.setdefault(reason, name)


class _Header(tarfile.TarInfo):
    """A header whose name and attributes are of a sane length."""

    def _proc_member(self, archive: Any) -> Any:
        if self.type in _LONG and self.size > HEADER_BYTES:
            raise tarfile.ReadError(f"a header has {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]


def read_index(path: Path, left_out: LeftOut) -> Iterator[Member]:
    """The regular files of an uncompressed tar file; what else it has is counted.

    A file that ends early, or goes on after its end, is refused: rows would be lost.
    """
    with path.open("rb") as file:
        try:
            with tarfile.open(fileobj=file, mode="r:", tarinfo=_Header) as archive:
                for number, header in enumerate(_headers(archive)):
                    if number >= MOST_MEMBERS:
                        raise tarfile.ReadError(f"it has more than {MOST_MEMBERS:,} members")
                    reason = _why_not(header)
                    if reason:
                        left_out.add(reason, header.name)
                    elif header.isreg() and not os.path.basename(header.name).startswith("."):
                        name = header.name.removeprefix("./")
                        yield Member(name, header.offset_data, header.size)
                _check_end(file, archive.offset)
        except TAR_FAULTS as error:
            message = f"{path.name} is not a readable tar file: {str(error).rstrip('.')}."
            fix = "Write or download it again."
            raise CORRUPT_FILE.error(message, fix=fix, file=str(path)) from None


def _headers(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (header := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # which would grow with the file
        yield header


def _why_not(header: tarfile.TarInfo) -> str:
    """Why a member is not read; empty for files and folders."""
    if header.issym() or header.islnk():
        return "links"
    if header.isdev():
        return "devices or pipes"
    if header.issparse():
        return "sparse files"
    if not (header.isreg() or header.isdir()):
        return "entries of an unknown type"
    parts = header.name.split("/")
    if header.name.startswith("/") or ".." in parts or "\0" in header.name:
        return "names that lead out of the archive"
    return ""


def _check_end(file: IO[bytes], offset: int) -> None:
    """A tar file ends with blocks of zeros, and with nothing else."""
    size = file.seek(0, os.SEEK_END)
    file.seek(offset)
    if size - offset < BLOCK:
        raise tarfile.ReadError(f"it has no end mark after {offset:,} bytes: it is cut off")
    while chunk := file.read(1 << 20):
        if chunk.count(0) != len(chunk):
            raise tarfile.ReadError(
                f"after its last readable member, at byte {offset:,}, it goes on with other data"
            )


def read_member(value: Mapping[str, Any]) -> bytes:
    """The bytes of a member that a cell points at: `{tar, offset, size}`."""
    with open(value["tar"], "rb") as file:
        file.seek(value["offset"])
        return file.read(value["size"])
