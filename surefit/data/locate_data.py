"""What the user passes as data to local paths: patterns and ranges of names, and URLs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from glob import glob, has_magic
from pathlib import Path
from urllib.parse import unquote, urlsplit

from surefit.data.choose_remote_files import choose_files, files_inside, label_names
from surefit.data.find_files import Finder
from surefit.data.remote.named_remote_files import fetch_named_files
from surefit.data.remote.remote_copy import Copy, copy_url
from surefit.data.remote.remote_url import clean_url, expand_ranges, is_url, protocol_of
from surefit.data.table import Table
from surefit.errors import UsageError


@dataclass(frozen=True)
class Located:
    """The paths of some data, and the copies of remote files among them."""

    paths: list[Path]
    copies: tuple[Copy, ...] = ()

    def has_all(self, finder: Finder) -> bool:
        """Whether all files were copied that the finder takes."""
        left = {copy.folder / file.path for copy in self.copies for file in copy.listing.left}
        return not left or left.isdisjoint(files_inside(finder.files_of(self.paths)[0]))

    def complete(self, table: Table) -> Table:
        """The table of these paths, with the remote files that it names, and what was found."""
        found = [finding for copy in self.copies for finding in copy.findings]
        table = replace(table, findings=(*found, *table.findings))
        return fetch_named_files(table, self.copies)


def locate(data: Sequence[str | Path], finder: Finder | None = None) -> Located:
    """The paths, those that patterns such as *.png match, and the local copies of URLs.

    Of a remote folder, the files are copied that the finder takes; all of them without one. An
    empty path, which would be the working folder, is refused.
    """
    if not all(str(item).strip() for item in data):
        raise UsageError("The path of the data is empty.", "Pass a file, a folder or a hub id.")
    paths: list[Path] = []
    copies: list[Copy] = []
    for name in (name for item in data for name in _names(item)):
        if not is_url(name):
            paths += _matched(Path(name))
        elif protocol_of(name) == "file":
            paths += _matched(_local_path(name))
        else:
            copies.append(_copy(name, finder))
            paths += copies[-1].paths
    located = Located(paths, tuple(copies))
    return located if finder is None or located.has_all(finder) else locate(data)


def _copy(url: str, finder: Finder | None) -> Copy:
    if finder is None:
        return copy_url(url, label_names)
    return copy_url(url, label_names, lambda found: choose_files(found, finder), finder.part)


def _names(item: str | Path) -> list[str]:
    return [str(item)] if Path(item).exists() else expand_ranges(str(item))


def _local_path(url: str) -> Path:
    parts = urlsplit(clean_url(url))
    if parts.netloc not in ("", "localhost"):
        message = f"{url} names the host {parts.netloc}; expected file:///PATH."
        raise UsageError(message, "Write three slashes before an absolute path.")
    return Path(unquote(parts.path))


def _matched(path: Path) -> list[Path]:
    """The path, or the files that it matches as a pattern, sorted."""
    if not has_magic(str(path)) or path.exists():
        return [path]
    found = [Path(name) for name in sorted(glob(str(path), recursive=True))]
    if not found:
        raise UsageError(f"No file matches {path}.", "Check the pattern, or pass a folder.")
    return found
