"""Copies of remote files in the cache: a folder for each URL, with its files under their names.

Of a remote folder, those files are empty that were not fetched: names alone decide what is read.
`files.json` has the version and the digest of each file that came whole. A file of the same version
is not downloaded again, and the files serve as they are when the server cannot be reached.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from surefit.core.files import mark, remove_file, write_json
from surefit.core.foreign import read_json
from surefit.data.cache import entry_folder, fingerprint, lock_entry, scratch_in_cache
from surefit.data.cache_contents import limit_cache
from surefit.data.cache_entry import content_hashes
from surefit.data.remote.remote_files import (
    Listing,
    RemoteError,
    RemoteFile,
    download,
    list_url,
    look_at,
)
from surefit.data.remote.remote_url import clean_url
from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.gigabytes import free_bytes, show_gb, to_bytes
from surefit.printable import name_copy
from surefit.processes import is_first_on_host
from surefit.progress import Progress, silent

UNREADABLE_URL = rule(
    "SF168",
    "error",
    "remote data that cannot be read",
    why="The server did not return the whole of what it lists, or not data at all.",
    fix="Open the URL with another program; try again later.",
)

COPY_USED = rule(
    "SF169",
    "warning",
    "server not reached, copy in the cache used",
    why="The files may have changed since they were read.",
    fix="Check the network or the credentials, if the newest files are needed.",
    accept="The copy in the cache is used.",
)

REMOTE_CHANGED = rule(
    "SF179",
    "warning",
    "remote data changed since it was last read",
    why="Results before and after the change are of different rows.",
    fix="Nothing to do if the change is meant; else restore the earlier files.",
    accept="The data is read as it is now.",
)

RECORD = "files.json"
TRIED = 8
"""If none of so many files that may be beside a file is there, no others are asked for."""


@dataclass
class Record:
    """What files.json holds; the date of the file is when the URL was last read."""

    root: str
    kind: Literal["file", "folder", "pattern"]
    names: list[str]
    came: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    """The version and the digest of each file that came whole."""
    is_mixed: bool = False
    """True while files are replaced: only some of them are new."""

    def listing(self) -> Listing:
        """The files that the URL stood for, without their versions."""
        files = {name: RemoteFile(self.root + name, name) for name in self.names}
        return Listing(self.root, self.kind, files)


@dataclass
class Copy:
    """What a URL stands for, and which of its files are in the cache, as they are now."""

    url: str
    home: Path
    listing: Listing
    record: Record
    date: str = ""
    """When the files were last read."""
    follows: bool = False
    """Whether another process of the host has just fetched the files."""
    failure: RemoteError | None = None
    fetched: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Named like the remote folder, whose name may say what is in it."""
        name = self.listing.root.partition("://")[2].strip("/").partition("/")[2].rpartition("/")[2]
        safe = "".join(char if char.isalnum() or char in "-_. " else "_" for char in name)
        return self.home / "data" / (safe.strip(". ")[:100] or "files")

    @property
    def paths(self) -> list[Path]:
        """The file, the folder, or the files that match a pattern."""
        inside = [self.folder / path for path in self.listing.files]
        return [self.folder] if self.listing.kind == "folder" else inside

    def fetch(self, paths: Iterable[str], if_there: bool = False) -> None:
        """Have files whole, as they are on the server; or as they were, if it does not answer."""
        wanted = [path for path in dict.fromkeys(paths) if path not in self.fetched]
        if if_there and (self.listing.kind == "folder" or self.failure or self.follows):
            known = {*self.listing.files, *self.record.came}
            wanted = [path for path in wanted if path in known]
        if not wanted:
            return
        with _locked(self.home):
            if not self.follows or not self._is_intact(wanted):
                try:
                    self._update(wanted, if_there)
                except RemoteError as error:
                    if not self._is_intact(wanted):
                        raise _unreadable(self.url, error) from None
                    self.fail(error)
        self.fetched |= self.record.came.keys() & {*wanted}

    def fail(self, error: RemoteError) -> None:
        """From now on, use the files as they were last read; that is said once."""
        if self.failure is None:
            message = f"{error.message} The copy of {self.date} in the cache is used."
            self.findings.append(COPY_USED.finding(message, file=self.url))
        self.failure = error

    def _held(self, paths: Sequence[str]) -> dict[str, str | None]:
        """The digests of the files as they are in the folder."""
        return dict(zip(paths, content_hashes([str(self.folder / p) for p in paths]), strict=True))

    def _is_intact(self, paths: Sequence[str]) -> bool:
        """Whether files are as they came, and all from one time."""
        came = self.record.came
        held = self._held(paths).items()
        return not self.record.is_mixed and all(p in came and came[p][1] == d for p, d in held)

    def _update(self, paths: Sequence[str], if_there: bool) -> None:
        """Download those of the files that the folder does not hold in the server's version."""
        if self.failure is not None:
            raise self.failure
        root, listed, reading = self.listing.root, self.listing.files, _reading.get() or Reading()
        named = [listed.get(path, RemoteFile(root + path, path)) for path in paths]
        files = look_at(named[:TRIED])
        files += look_at(named[TRIED:]) if files or not if_there else []
        if len(files) < len(paths) and not if_there:
            gone = min({*paths} - {file.path for file in files})
            raise RemoteError(f"{root}{gone} is listed, but is not there.", "Check the server.")
        came, held = self.record.came, self._held([file.path for file in files])
        missing = [
            f for f in files if not f.version or came.get(f.path) != (f.version, held[f.path])
        ]
        self._make_room(sum(file.size or 0 for file in missing), reading.limit_gb)
        changed = {*self.record.names} ^ {*listed}
        self.record.names, saved = [*listed], 0.0
        with scratch_in_cache() as scratch:
            for file, digest in download(missing, self.folder, scratch, reading.progress):
                if came.get(file.path, ("", digest))[1] != digest:
                    changed.add(file.path)
                    self.record.is_mixed = True
                came[file.path] = (file.version, digest)
                if time.monotonic() > saved + 1:  # a killed process keeps what has come
                    self._save()
                    saved = time.monotonic()
        self.record.is_mixed = False
        self._save()
        if changed and self.date:
            message = f"{self.url}: since {self.date}, {len(changed):,} files were changed, added "
            message += f"or removed, {min(changed)} among them."
            self.findings.append(REMOTE_CHANGED.finding(message, file=self.url))

    def _save(self) -> None:
        write_json(self.home / RECORD, asdict(self.record))

    def _make_room(self, needed: int, limit_gb: float | None) -> None:
        """Raise an error unless files fit on the disk and in the limit, for which others go."""
        free, limit = free_bytes(self.home), limit_gb and to_bytes(limit_gb)
        if needed > free or (limit is not None and needed > limit):
            place = f"the disk of the cache folder {self.home.parents[1]} has {show_gb(free)} free"
            room = place if needed > free else f"cache_limit_gb is {limit_gb:g}"
            fix = "Free some space (surefit cache clean), raise cache_limit_gb, or choose a folder "
            fix += "on another disk with --set cache=FOLDER or the variable SUREFIT_CACHE."
            message = f"{self.url} has {show_gb(needed)} to download; {room}."
            raise UNREADABLE_URL.error(message, fix=fix, file=self.url)
        if limit_gb is not None:
            limit_cache(limit_gb - needed / to_bytes(1.0))


@dataclass
class Reading:
    """What one command has read of remote data; it sees one version of each URL."""

    progress: Progress = silent
    limit_gb: float | None = None
    copies: dict[str, Copy] = field(default_factory=dict)


_reading: ContextVar[Reading | None] = ContextVar("remote_reading", default=None)


@contextmanager
def reading_once(progress: Progress = silent, limit_gb: float | None = None) -> Iterator[None]:
    """While the block runs, a URL is looked at once, and stands for the same files."""
    before = _reading.get()
    token = _reading.set(Reading(progress, limit_gb, before.copies if before else {}))
    try:
        yield
    finally:
        _reading.reset(token)


def open_url(url: str) -> Copy:
    """List the files of a URL, as they are now on the server, and make the folder of its copy."""
    shown = clean_url(url)
    reading = _reading.get() or Reading()
    if shown not in reading.copies:
        with _locked(entry_folder("remote", fingerprint(shown))) as home:
            copy = _open_copy(shown, home)
            if copy.listing.kind == "folder":
                _make_names(copy.folder, copy.listing)
        name_copy(copy.folder, copy.listing.root)
        reading.copies[shown] = copy
    return reading.copies[shown]


def _open_copy(url: str, home: Path) -> Copy:
    try:
        record = read_json(home / RECORD, Record)
    except UsageError:  # none yet
        try:
            listing = list_url(url)
        except RemoteError as error:
            raise _unreadable(url, error) from None
        return Copy(url, home, listing, Record(listing.root, listing.kind, [*listing.files]))
    written = time.localtime((home / RECORD).stat().st_mtime)
    copy = Copy(url, home, record.listing(), record, time.strftime("%Y-%m-%d %H:%M", written))
    copy.follows = not is_first_on_host()
    try:
        copy.listing = copy.listing if copy.follows else list_url(url)
    except RemoteError as error:
        copy.fail(error)
    return copy


def _unreadable(url: str, error: RemoteError) -> Exception:
    return UNREADABLE_URL.error(error.message, fix=error.fix, file=url)


def _make_names(folder: Path, listing: Listing) -> None:
    """Make an empty file for each that is not there, and remove those that are not listed."""
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.relative_to(folder).as_posix() not in listing.files:
            remove_file(path)
    for name in listing.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@contextmanager
def _locked(home: Path) -> Iterator[Path]:
    """Use the folder of a URL; another process that reads the same URL waits."""
    with lock_entry(home):
        home.mkdir(exist_ok=True)
        mark(home)
        os.utime(home)  # when it was last used
        yield home
