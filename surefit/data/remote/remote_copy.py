"""The copy of remote files in the cache: one entry for each version of what a URL stands for.

An entry has the files in `data/FOLDER/…`, with their names, and `about.json` with the version of
each. A version that the server does not tell is the hash of the content. Files of a folder that are
not read are empty there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from surefit import atomic, digests
from surefit.data.cache import fingerprint
from surefit.data.cache_contents import limit_cache
from surefit.data.cache_entry import entry_folder, is_sound, writing
from surefit.data.cache_use import open_cache, scratch_in_cache, use_entry
from surefit.data.remote.download import download, look_at_all, with_retries
from surefit.data.remote.fsspec_files import make_files
from surefit.data.remote.http_files import HttpFiles
from surefit.data.remote.remote_file import (
    UNREADABLE_URL,
    ChangedError,
    Files,
    Listing,
    RemoteError,
    RemoteFile,
    UnreachableError,
)
from surefit.data.remote.remote_url import clean_url, protocol_of
from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.gigabytes import show_gb, show_size, to_bytes
from surefit.processes import is_first_on_host
from surefit.progress import Progress, silent
from surefit.shown_places import show_as

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

NOT_DOWNLOADED = rule(
    "SF874",
    "info",
    "remote files that are not read",
    why="Of a folder, the files are read that a local folder's would be: one format, and of "
    "official splits the part that is asked for. The others are not downloaded.",
    fix="Nothing to do. To read others, pass their URLs.",
)

KIND = "remote"
ABOUT = "about.json"
DATA = "data"
ATTEMPTS = 3
"""How often data is listed again that changes while it is read."""


@dataclass(frozen=True)
class Copy:
    """Local paths of what a URL stands for, and what was found when it was looked at."""

    paths: tuple[Path, ...]
    listing: Listing
    folder: Path
    findings: tuple[Finding, ...] = ()


@dataclass
class Reading:
    """What one command has read of remote data; it sees one version of each URL."""

    progress: Progress = silent
    limit_gb: float | None = None
    copies: dict[Any, Copy] = field(default_factory=dict)


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


def files_of_protocol(url: str) -> Files:
    """What reads a URL."""
    return HttpFiles() if protocol_of(url) in ("http", "https") else make_files(url)


def copy_url(
    url: str,
    beside: Callable[[str], Sequence[str]] | None = None,
    choose: Callable[[Listing], Listing] | None = None,
    purpose: str = "",
) -> Copy:
    """The files of a URL in the cache, as they are now on the server.

    `beside` gives the names of files that belong to a file, and are copied with it; `choose` leaves
    files of a folder that are not read for a purpose.
    """
    shown = clean_url(url)

    def find(reader: Files) -> Listing:
        listing = with_retries(lambda: reader.list_files(shown))
        if listing is None or not listing.files:
            what = "matches" if listing is not None else "is at"
            raise UsageError(f"No file {what} {shown}.", "Check the URL.")
        _check_names(listing)
        if listing.kind == "folder":
            listing = _without_hidden(listing)
        if listing.kind == "file" and beside is not None:
            listing = _with_beside(listing, reader, beside(listing.files[0].path))
        return listing if choose is None else choose(listing)

    keys = ("url", shown), ("url", shown, purpose)
    return _remembered(keys, lambda: _copy(shown, find, purpose))


def copy_files(name: str, listing: Listing) -> Copy:
    """The files of a listing that was made elsewhere, under a name that identifies it."""
    return _remembered([("files", name, listing)], lambda: _copy(name, lambda _: listing))


def _remembered(keys: Sequence[Any], make: Callable[[], Copy]) -> Copy:
    """What was made under one of the keys; the last one is that of a part of the files."""
    reading = _reading.get()
    copies = reading.copies if reading is not None else {}
    known = next((copies[key] for key in keys if key in copies), None)
    if known is not None:
        return replace(known, findings=())
    try:
        made = make()
    except RemoteError as error:
        raise UNREADABLE_URL.error(error.message, fix=error.fix) from None
    if reading is not None:
        reading.copies[keys[-1] if made.listing.left else keys[0]] = made
    return made


def _copy(name: str, find: Callable[[Files], Listing], purpose: str = "") -> Copy:
    whole = fingerprint(name)
    part = f"{whole}{purpose}"  # entries with a part of the files
    if not is_first_on_host() and (newest := _newest(whole, part)) is not None:
        return _open(newest)  # the first process of the host has just made it
    reader = files_of_protocol(name)
    for attempt in range(ATTEMPTS):
        try:
            listing = find(reader)
        except UnreachableError as error:
            found = _newest(whole, part)
            if found is None:
                raise
            return _open(found, (_from_before(name, found, error),))
        url_key = part if listing.left else whole
        before = next(iter(_entries(url_key)), None)
        try:
            made = _copy_listing(url_key, listing, reader)
        except ChangedError:
            if attempt + 1 == ATTEMPTS:
                raise
            continue
        return replace(made, findings=(*_changes(name, before, made), *_not_read(made.listing)))
    raise AssertionError("there is at least one attempt")


def _copy_listing(url_key: str, listing: Listing, reader: Files) -> Copy:
    if listing.is_versioned:
        folder = entry_folder(KIND, f"{url_key}-{fingerprint(_about(listing))}")
        if not is_sound(folder):
            have = _have(listing.files)
            _make_room(listing, have)
            with writing(), atomic.resumable_folder(folder, RemoteError) as half:
                _fill(half, listing, reader, have)
        return _open(folder)
    have = _have([file for file in listing.files if file.version is not None])
    if not _entries(url_key):  # else most likely the same is read again
        _make_room(listing, have)
    with scratch_in_cache() as scratch, writing():
        _fill(scratch, listing, reader, have)
        folder = entry_folder(KIND, f"{url_key}-{digests.hash_file(scratch / digests.FILE)}")
        if not is_sound(folder):
            with atomic.new_folder(folder) as temporary:
                for inner in scratch.iterdir():
                    os.replace(inner, temporary / inner.name)
    return _open(folder)


def _fill(folder: Path, listing: Listing, reader: Files, have: Mapping[RemoteFile, Path]) -> None:
    place = data_folder(folder, listing.root)
    place.mkdir(parents=True, exist_ok=True)
    download(listing.files, reader, place, (_reading.get() or Reading()).progress, have)
    make_placeholders(place, listing.left)
    atomic.write_json(folder / ABOUT, _about(listing))
    digests.seal(folder)


def _make_room(listing: Listing, have: Mapping[RemoteFile, Path]) -> None:
    """Remove entries that are not in use, so that the cache stays within its limit."""
    limit_gb = (_reading.get() or Reading()).limit_gb
    if limit_gb is None:
        return
    size, limit = sum(file.size or 0 for file in listing.files), to_bytes(limit_gb)
    if size > limit:
        raise RemoteError(
            f"{listing.root} has {show_gb(size)} of data; cache_limit_gb is {limit_gb:g}.",
            "Raise cache_limit_gb, or leave it out.",
        )
    missing = sum(file.size or 0 for file in listing.files if file not in have)
    limit_cache((limit - missing) / to_bytes(1.0))


def make_placeholders(folder: Path, files: Sequence[RemoteFile]) -> None:
    """An empty file in place of each; the names alone decide which files of a folder are read."""
    for place in {(folder / file.path).parent for file in files}:
        place.mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / file.path).touch()


def _not_read(listing: Listing) -> Iterator[Finding]:
    """What is known of the files that are left."""
    if not listing.left:
        return
    names = ", ".join(file.path for file in listing.left[:3])
    more = f" and {len(listing.left) - 3:,} more" if len(listing.left) > 3 else ""
    size = sum(file.size or 0 for file in listing.left)
    count = len(listing.files) + len(listing.left)
    yield NOT_DOWNLOADED.finding(
        f"{len(listing.left):,} of {count:,} files of {listing.root} ({show_size(size)}) are not "
        f"read, and not downloaded: {names}{more}.",
        file=listing.root,
    )


def _about(listing: Listing) -> dict[str, Any]:
    by_name = {
        key: {file.path: [file.url, file.size, file.version] for file in files}
        for key, files in (("files", listing.files), ("left", listing.left))
        if files or key == "files"
    }
    return {"format_version": 1, "root": listing.root, "kind": listing.kind, **by_name}


def _read_about(folder: Path) -> Listing:
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    files, left = (
        tuple(RemoteFile(of[0], path, of[1], of[2]) for path, of in about.get(key, {}).items())
        for key in ("files", "left")
    )
    return Listing(about["root"], files, about["kind"], left)


def _open(folder: Path, findings: tuple[Finding, ...] = ()) -> Copy:
    """The copy in an entry that is sound."""
    listing = _read_about(folder)
    place = data_folder(folder, listing.root)
    show_as(place, listing.root)
    own = [listing.files[0]] if listing.kind == "file" else listing.files
    paths = (place,) if listing.kind == "folder" else tuple(place / file.path for file in own)
    return Copy(paths, listing, place, findings)


def data_folder(folder: Path, root: str) -> Path:
    """Named like the remote folder, whose name may say what is in it."""
    name = root.partition("://")[2].strip("/").partition("/")[2].rpartition("/")[2]
    safe = "".join(char if char.isalnum() or char in "-_. " else "_" for char in name).strip(". ")
    return folder / DATA / (safe[:100] or "files")


def _entries(*keys: str) -> list[Path]:
    """The entries of some keys or of all, the one that was used last first."""
    found = []
    for path in (path for key in keys or ("*",) for path in (open_cache() / KIND).glob(f"{key}-*")):
        with suppress(OSError):
            found.append(((path / digests.FILE).stat().st_mtime, path))
    return [path for _, path in sorted({*found}, reverse=True)]


def _newest(*keys: str) -> Path | None:
    for folder in _entries(*keys):
        use_entry(folder)
        if is_sound(folder):
            return folder
    return None


def _have(files: Sequence[RemoteFile]) -> dict[RemoteFile, Path]:
    """Files that other entries have in the same version, and where."""
    wanted = {(file.url, file.size, file.version): file for file in files}
    found: dict[RemoteFile, Path] = {}
    for folder in _entries():
        try:
            listing = _read_about(folder)
        except (OSError, ValueError, KeyError, TypeError):  # damaged: it is rebuilt when needed
            continue
        same = [f for f in listing.files if (f.url, f.size, f.version) in wanted]
        if same:
            use_entry(folder)
        if not same or not is_sound(folder):
            continue
        for file in same:
            known = wanted[file.url, file.size, file.version]
            found.setdefault(known, data_folder(folder, listing.root) / file.path)
    return found


def _changes(name: str, before: Path | None, made: Copy) -> Iterator[Finding]:
    """A warning if the content is not that of the entry that was used last."""
    entry = made.folder.parents[1]
    if before is None or before == entry:
        return
    try:
        old, new = _contents(before), _contents(entry)
    except (OSError, ValueError, KeyError, TypeError):  # damaged: it is rebuilt when needed
        return
    changed = {path for path in new if path in old and old[path] != new[path]}
    kinds = {"changed": changed, "added": new.keys() - old, "removed": old.keys() - new}
    parts = [f"{len(paths):,} {what}" for what, paths in kinds.items() if paths]
    if parts:
        first = min(path for paths in kinds.values() for path in paths)
        message = f"{name}: of the files read on {_date(before)}, {', '.join(parts)}: {first}"
        more = sum(map(len, kinds.values())) > 1
        yield REMOTE_CHANGED.finding(message + (", …" if more else "."), file=name)


def _contents(folder: Path) -> dict[str, str]:
    """The digest of each file of an entry, by its path."""
    listed = json.loads((folder / digests.FILE).read_text(encoding="utf-8"))["files"]
    head = data_folder(folder, _read_about(folder).root).relative_to(folder).as_posix() + "/"
    return {
        path.removeprefix(head): of[digests.ALGORITHM]
        for path, of in listed.items()
        if path.startswith(head)
    }


def _from_before(name: str, folder: Path, error: RemoteError) -> Finding:
    message = f"{error.message} The copy of {_date(folder)} in the cache is used."
    return COPY_USED.finding(message, file=name)


def _date(folder: Path) -> str:
    seconds = (folder / ABOUT).stat().st_mtime
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _with_beside(listing: Listing, reader: Files, names: Sequence[str]) -> Listing:
    looked = dict(look_at_all([(listing.root + name, name) for name in names], reader))
    found = (looked[name] for name in names)
    return replace(listing, files=(*listing.files, *(file for file in found if file is not None)))


def _without_hidden(listing: Listing) -> Listing:
    """The listing without files whose name or folder begins with a dot, which are not read."""
    shown = [f for f in listing.files if not any(p.startswith(".") for p in f.path.split("/"))]
    return replace(listing, files=tuple(shown) or listing.files)


def _check_names(listing: Listing) -> None:
    """Refuse names that would leave the folder, or that no file can have."""
    folders = {file.path.rpartition("/")[0] for file in listing.files}
    folders |= {path.rpartition("/")[0] for path in folders}
    for file in listing.files:
        parts = file.path.split("/")
        odd = "\0" in file.path or "\\" in file.path or any(len(p.encode()) > 255 for p in parts)
        if odd or file.path in folders or any(part in ("", ".", "..") for part in parts):
            raise RemoteError(
                f"{listing.root} lists {file.path!r}, which is not a name that a file can have "
                "here.",
                "Rename it on the server, or pass a pattern that leaves it out.",
            )
