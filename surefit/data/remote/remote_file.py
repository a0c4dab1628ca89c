"""What is known of remote files before they are read: name, size, and version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from surefit.errors import SurefitError
from surefit.findings import rule

UNREADABLE_URL = rule(
    "SF168",
    "error",
    "remote data that cannot be read",
    why="The server did not return the whole of what it lists, or not data at all.",
    fix="Open the URL with another program; try again later.",
)

MOST_FILES = 1_000_000


class RemoteError(SurefitError):
    """A remote file that could not be read; `transient` if another attempt may succeed."""

    def __init__(self, message: str, fix: str = "", transient: bool = False) -> None:
        super().__init__(message, fix or UNREADABLE_URL.fix)
        self.transient = transient


class UnreachableError(RemoteError):
    """The server does not answer, or does not let this user in: nothing is known of the files."""


class ChangedError(RemoteError):
    """A file is no longer what the listing said."""


class LocalFaultError(Exception):
    """A fault on this side while a remote file was read, such as a full disk."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True)
class RemoteFile:
    """One file: its URL, its path below the folder that is listed, and what identifies it."""

    url: str
    path: str
    size: int | None
    version: str | None
    """Changes with the content (an ETag, a generation, a hash); None where nothing does."""


@dataclass(frozen=True)
class Listing:
    """The files that a URL stands for, and the folder they are in."""

    root: str
    files: tuple[RemoteFile, ...]
    kind: Literal["file", "folder", "pattern"]
    left: tuple[RemoteFile, ...] = ()
    """Files of a folder that are not read. Their names decide what is."""

    @property
    def is_versioned(self) -> bool:
        """Whether every file can be identified without reading it."""
        return all(file.version is not None for file in self.files)


class Files(Protocol):
    """One way to read remote files."""

    def list_files(self, url: str) -> Listing | None:
        """The files of a URL; None if there is nothing there."""

    def look(self, url: str, path: str) -> RemoteFile | None:
        """One file, which is stored as `path`; None if there is none."""

    def read(self, file: RemoteFile, start: int) -> AbstractContextManager[Iterator[bytes]]:
        """The bytes of a file from `start` on; a ChangedError if it is another version."""


def strong(version: object) -> str | None:
    """A version that changes with every byte; None for a weak ETag, or none.

    >>> strong('"5d41402a"'), strong('W/"5d41402a"'), strong("")
    ('5d41402a', None, None)
    """
    text = str(version).strip() if version is not None else ""
    return None if not text.strip('"') or text.startswith("W/") else text.strip('"')
