"""Copies of remote files in the cache: a folder for each URL, with its files by their names.

A folder is listed first, and has an empty file for each name until the file is fetched: names alone
decide what is read. `log.jsonl` has a line for each file that came whole, with its version and the
digest of its content; a file of the same version is not downloaded again. `files.json` has the
names and digests as they were last read, which serve when the server cannot be reached.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from surefit.core.files import mark, remove_file, write_json
from surefit.core.foreign import parse_json, read_json
from surefit.data.cache import entry_folder, fingerprint, lock_entry, scratch_in_cache
from surefit.data.cache_contents import limit_cache
from surefit.data.file_identity import content_hashes
from surefit.data.remote.remote_files import (
    Listing,
    RemoteError,
    RemoteFile,
    download,
    list_url,
    look_at,
)
from surefit.data.remote.remote_url import clean_url
from surefit.disk_space import free_bytes
from surefit.errors import RunFailedError, UsageError
from surefit.findings import Finding, rule
from surefit.gigabytes import show_gb, to_bytes
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

LOG, RECORD = "log.jsonl", "files.json"
TRIED = 8
"""If none of so many files that may be beside a file is there, no others are asked for."""


@dataclass
class Copy:
    """What a URL stands for, and which of its files are in the cache, as they are now."""

    url: str
    home: Path
    listing: Listing
    before: dict[str, str]
    """The digests of the files as they were last read."""
    follows: bool = False
    """Whether another process of the host has just fetched the files."""
    failure: RemoteError | None = None
    changed: set[str] = field(default_factory=set)
    digests: dict[str, str] = field(default_factory=dict)
    """Of the files that were fetched; others are empty."""
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
        wanted = [path for path in dict.fromkeys(paths) if path not in self.digests]
        if if_there and (self.listing.kind == "folder" or self.failure or self.follows):
            wanted = [path for path in wanted if path in self.listing.files or path in self.before]
        if not wanted:
            return
        with _locked(self.home):
            try:
                done = self._intact(wanted) if self.follows else {}
                done = done if len(done) == len(wanted) else self._update(wanted, if_there)
            except RemoteError as error:  # some files may have got their new content
                done = self._intact(wanted)
                if len(done) < len(wanted):
                    raise _unreadable(self.url, error) from None
                self.fail(error)
            self.digests |= done

    def _held(self, paths: Sequence[str]) -> dict[str, str | None]:
        """The digests of the files as they are in the folder."""
        return dict(zip(paths, content_hashes([str(self.folder / p) for p in paths]), strict=True))

    def _intact(self, paths: Sequence[str]) -> dict[str, str]:
        """The digests of those files that are as they were last read."""
        held = self._held([path for path in paths if path in self.before])
        return {path: digest for path, digest in held.items() if digest == self.before[path]}

    def fail(self, error: RemoteError) -> None:
        """From now on, use the files as they were last read; that is said once."""
        if self.failure is None:
            message = f"{error.message} The copy of {self._date} in the cache is used."
            self.findings.append(COPY_USED.finding(message, file=self.url))
        self.failure = error

    def _update(self, paths: Sequence[str], if_there: bool) -> dict[str, str]:
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
        log, held = _read_log(self.home), self._held([file.path for file in files])
        done = {
            file.path: digest
            for file, digest in zip(files, held.values(), strict=True)
            if digest and file.version and log.get(file.path) == [file.version, digest]
        }
        missing = [file for file in files if file.path not in done]
        self._make_room(sum(file.size or 0 for file in missing), reading.limit_gb)
        with scratch_in_cache() as scratch, (self.home / LOG).open("a", encoding="utf-8") as lines:
            for file, digest in download(missing, self.folder, scratch, reading.progress):
                lines.write(json.dumps([file.path, file.version, digest]) + "\n")
                lines.flush()
                done[file.path] = digest
        self._record(done)
        return done

    def _record(self, done: dict[str, str]) -> None:
        """Write down what was read, and report what is not as it was the last time."""
        changed = self.changed | {p for p, d in done.items() if self.before.get(p, d) != d}
        if changed:
            message = f"{self.url}: since {self._date}, {len(changed):,} files were changed, added "
            message += f"or removed, {min(changed)} among them."
            self.findings.append(REMOTE_CHANGED.finding(message, file=self.url))
        self.changed, self.before = set(), self.before | done
        root, kind, names = self.listing.root, self.listing.kind, [*self.listing.files]
        write_json(self.home / RECORD, asdict(Record(root, kind, names, self.before)))

    def _make_room(self, needed: int, limit_gb: float | None) -> None:
        """Raise an error unless files fit on the disk and in the limit, for which others go."""
        free = free_bytes(self.home)
        if needed > free:
            raise RunFailedError(
                f"{self.url} has {show_gb(needed)} to download; the disk of the cache folder "
                f"{self.home.parents[1]} has {show_gb(free)} free.",
                "Free some space (surefit cache clean), or choose a folder on another disk with "
                "--set cache=FOLDER or the environment variable SUREFIT_CACHE.",
            )
        if limit_gb is None:
            return
        if needed > to_bytes(limit_gb):
            message = (
                f"{self.url} has {show_gb(needed)} to download; cache_limit_gb is {limit_gb:g}."
            )
            fix = "Raise cache_limit_gb, or leave it out."
            raise UNREADABLE_URL.error(message, fix=fix, file=self.url)
        limit_cache(limit_gb - needed / to_bytes(1.0))

    @property
    def _date(self) -> str:
        written = (self.home / RECORD).stat().st_mtime
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(written))


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
    if shown in reading.copies:
        return reading.copies[shown]
    with _locked(entry_folder("remote", fingerprint(shown))) as home:
        copy = _open_copy(shown, home)
        if copy.listing.kind == "folder":
            _make_names(copy.folder, copy.listing)
    name_copy(copy.folder, copy.listing.root)
    reading.copies[shown] = copy
    return copy


def _open_copy(url: str, home: Path) -> Copy:
    known, before = _read_record(home)
    if known is not None and not is_first_on_host():
        return Copy(url, home, known, before, follows=True)
    try:
        listing = list_url(url)
    except RemoteError as error:
        if known is None:
            raise _unreadable(url, error) from None
        copy = Copy(url, home, known, before)
        copy.fail(error)
        return copy
    changed = {*known.files} ^ {*listing.files} if known is not None else set()
    return Copy(url, home, listing, before, changed=changed)


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


def _read_log(home: Path) -> dict[str, list[Any]]:
    """The version and digest of each file that came, by its path; the last line may be torn."""
    found: dict[str, list[Any]] = {}
    with suppress(OSError):
        for line in (home / LOG).read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(UsageError):
                path, *rest = parse_json(line, tuple[str, str | None, str], str(home / LOG))
                found[path] = rest
    return found


@dataclass(frozen=True)
class Record:
    """What files.json holds."""

    root: str
    kind: Literal["file", "folder", "pattern"]
    names: list[str]
    digests: dict[str, str]


def _read_record(home: Path) -> tuple[Listing | None, dict[str, str]]:
    with suppress(UsageError):
        about = read_json(home / RECORD, Record)
        files = {name: RemoteFile(about.root + name, name) for name in about.names}
        return Listing(about.root, about.kind, files), about.digests
    return None, {}
