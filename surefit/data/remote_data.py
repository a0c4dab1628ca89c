"""Data at a URL, copied into the cache once per version by fsspec, and then read like local files.

Each URL has a folder in the cache with its files under their own names, from which splits, classes
and formats are inferred. `files.json` has the version and the digest of each file: what is as it
came is not downloaded again, and the copy serves while the server cannot be reached.
"""

from __future__ import annotations

import os
import posixpath
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from glob import has_magic
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote, unquote, urlsplit

from surefit.core.files import mark, move_inside, remove_file, write_json
from surefit.core.foreign import first_line, read_json
from surefit.data.cache import entry_folder, fingerprint, lock_entry
from surefit.data.cache_entry import content_hashes
from surefit.data.formats.opened import label_names
from surefit.data.remote_url import clean_url, protocol_of, with_access
from surefit.errors import SurefitError, UsageError
from surefit.findings import Finding, rule
from surefit.gigabytes import free_bytes, show_size, to_bytes
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

RECORD, PARTS = "files.json", "parts"
THREADS = 8
WAIT_SECONDS, LEAST_BYTES = 60.0, 1 << 16
"""How long a connection may bring nothing, and a download less than so many bytes."""
LIST_SECONDS, LIST_BYTES = 600.0, 1 << 28
"""What all pages of a folder may take: a server may make up names for ever."""
PAUSES_SECONDS: tuple[float, ...] = (1.0, 2.0, 4.0)
"""How long to wait before the next attempt after an error that may pass."""
LOOKING = "looking at remote files"
DISK_SHARE = 0.9
"""The part of the free disk that a download may take."""
_TEXTS = (".html", ".htm", ".txt")
_HTML = re.compile(rb"\s*(<!doctype html|<html)", re.IGNORECASE)

Made = TypeVar("Made")


class RemoteError(SurefitError):
    """A remote file that could not be read."""


@dataclass(frozen=True)
class RemoteFile:
    """A file that exists: its place in the store, and what identifies its content, if known."""

    place: str
    size: int | None
    version: str | None


@dataclass
class Record:
    """What files.json holds; the date of the file is when the URL was last read."""

    root: str
    """The URL of the folder that the files are in."""
    kind: Literal["file", "folder", "pattern"]
    came: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    """Version and digest of each file, by its path below the root."""

    def folder(self, home: Path) -> Path:
        """Return the folder of the files, named as at the source: its name may be a class."""
        name = urlsplit(self.root).path.strip("/").rpartition("/")[2]
        safe = re.sub(r"[^\w. -]", "_", name).strip(". ")
        return home / "data" / (safe[:100] or "files")

    def intact(self, home: Path) -> dict[str, tuple[str | None, str]]:
        """Return those files that are in the folder as they came."""
        held = content_hashes([str(self.folder(home) / path) for path in self.came])
        pairs = zip(self.came.items(), held, strict=True)
        return {path: about for (path, about), found in pairs if found == about[1]}


@dataclass
class Copy:
    """The local paths of a URL, and what was found when it was read."""

    paths: list[Path]
    findings: list[Finding]


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


def open_url(url: str, is_data: Callable[[str], bool]) -> Copy:
    """Copy the files of a URL into the cache; of a folder, those that may be data by their names.

    If the server cannot be read, the copy of an earlier time is used, which is a Finding.
    """
    shown, reading, found = clean_url(url), _reading.get() or Reading(), list[Finding]()
    if shown in reading.copies:
        return reading.copies[shown]
    home = entry_folder("remote", fingerprint(shown))
    with lock_entry(home):
        home.mkdir(exist_ok=True)
        mark(home)
        os.utime(home)  # when it was last used
        record: Record | None = None
        with suppress(UsageError):  # none yet
            record = read_json(home / RECORD, Record)
        # of several processes on a host, the first one downloads
        if record is None or is_first_on_host():
            try:
                record = _update(shown, home, record, is_data, reading)
            except RemoteError as error:
                if record is None or record.intact(home) != record.came:
                    raise UNREADABLE_URL.error(error.message, fix=error.fix, file=shown) from None
                read = time.localtime((home / RECORD).stat().st_mtime)
                message = f"{error.message} The copy of {time.strftime('%Y-%m-%d %H:%M', read)} "
                found.append(COPY_USED.finding(f"{message}in the cache is used.", file=shown))
    folder = record.folder(home)
    name_copy(folder, record.root)
    inside = [folder / path for path in record.came]
    paths = {"file": inside[:1], "pattern": inside, "folder": [folder]}[record.kind]
    return reading.copies.setdefault(shown, Copy(paths, found))


def _update(
    url: str, home: Path, old: Record | None, is_data: Callable[[str], bool], reading: Reading
) -> Record:
    """Download the files that the copy does not hold in the server's version."""
    record, files = _attempt(url, lambda: _list(url, is_data, reading.progress))
    if not files:
        what = "matches" if record.kind == "pattern" else "is at"
        raise UsageError(f"No file {what} {url}.", "Check the URL.")
    came, folder = {} if old is None else old.intact(home), record.folder(home)
    # what a killed process has got whole is there: a name for each version
    (home / PARTS).mkdir(exist_ok=True)
    parts = {
        path: home / PARTS / fingerprint(path, file.version or time.time())
        for path, file in files.items()
        if path not in came or file.version is None or came[path][0] != file.version
    }
    missing = {path: files[path] for path in parts}
    try:
        _attempt(url, lambda: _get(url, missing, parts, _make_meter(url, missing, home, reading)))
    except BaseException:
        for path in _not_whole(missing, parts):
            remove_file(parts[path])
        raise
    for path, digest in zip(parts, content_hashes([*map(str, parts.values())]), strict=True):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        move_inside(parts[path], folder / path)
        came[path] = (files[path].version, str(digest))
    kept = {folder / path for path in files}
    for place in [*folder.rglob("*"), *(home / PARTS).iterdir()]:
        if place.is_file() and place not in kept:
            remove_file(place)
    record.came = {path: came[path] for path in files}
    write_json(home / RECORD, asdict(record))
    return record


def _list(
    url: str, is_data: Callable[[str], bool], progress: Progress
) -> tuple[Record, dict[str, RemoteFile]]:
    """List one file with its labels, the files of a folder, or those that match a pattern."""
    store, place = _open(url, progress)
    is_http = protocol_of(url) == "http"
    bare = (url.partition("?")[0] if is_http else url).rstrip("/")
    # else fsspec ignores errors of the pages that it follows, and may follow them for ever
    strictly = {"on_error": "raise", "maxdepth": 16} if is_http else {}
    if has_magic(unquote(urlsplit(url).path) if is_http else url):
        root = re.split(r"[*?\[]", url, maxsplit=1)[0].rpartition("/")[0]
        found = _inside(root, store.glob(place, detail=True, **strictly))
        return Record(f"{root}/", "pattern"), _look_at(store, url, found, progress)
    is_page = is_http and bare == url.rstrip("/") != url
    about = None if is_page else _info(store, place)
    if is_page or (about is not None and about["type"] == "directory"):
        found = {}
        with suppress(FileNotFoundError):
            found = _inside(bare, store.find(f"{place.rstrip('/')}/", detail=True, **strictly))
        shown = {path: each for path, each in found.items() if "/." not in f"/{path}"}
        named = {path: each for path, each in shown.items() if is_data(path)}
        return Record(f"{bare}/", "folder"), _look_at(store, url, named or shown, progress)
    root, _, name = bare.rpartition("/")
    path = posixpath.basename(unquote(name) if is_http else name) or "data"
    labels = {label: (_open(f"{root}/{label}")[1], None) for label in label_names(path)}
    found = {path: (place, about), **labels} if about is not None else {}
    return Record(f"{root}/", "file"), _look_at(store, url, found, progress)


def _inside(root: str, listed: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return the files below a URL by their paths; names that no file can have are refused."""
    is_http = protocol_of(root) == "http"
    head, files = _open(f"{root}/")[1].rstrip("/"), {}
    for place, about in sorted(listed.items()):
        inner = posixpath.normpath(place.removeprefix(head).lstrip("/"))
        path = unquote(inner) if is_http else inner
        if about.get("type") != "file" or inner == "." or re.search("[?#]", inner):
            continue
        if re.search(r"[\0\\]|(^|/)(\.\.?)?(/|$)|[^/]{256}", path):
            raise RemoteError(
                f"{root} lists {path!r}, which is not a name that a file can have here.",
                "Rename it on the server, or pass a pattern that leaves it out.",
            )
        files[path] = (place, None if is_http else about)
    return files


def _look_at(
    store: Any, url: str, found: Mapping[str, tuple[str, Any]], progress: Progress
) -> dict[str, RemoteFile]:
    """Return those files that exist, with sizes and versions."""
    files: dict[str, RemoteFile] = {}
    with ThreadPool(THREADS) as pool:
        looked = pool.imap(lambda each: each[1] or _info(store, each[0]), found.values())
        for number, (path, (place, _)) in enumerate(found.items(), 1):
            about = next(looked)
            progress(LOOKING, number, len(found))
            if about is not None and about["type"] == "file":
                version = fingerprint(about)
                if protocol_of(url) == "http":  # a weak ETag is equal for other bytes
                    version = about.get("ETag", "W/")
                is_known = not version.startswith("W/")
                files[path] = RemoteFile(place, about.get("size"), version if is_known else None)
    progress(LOOKING, 1, 1)
    return files


def _make_meter(url: str, files: Mapping[str, RemoteFile], home: Path, reading: Reading) -> Any:
    """Make the callback of a download: it shows it, and ends one that stalls or brings too much."""
    from fsspec.callbacks import Callback

    total = sum(file.size or 0 for file in files.values())
    room = round(DISK_SHARE * free_bytes(home))
    room = room if reading.limit_gb is None else min(room, to_bytes(reading.limit_gb))

    class Meter(Callback):
        stopped, counted, since = False, 0, time.monotonic()

        def branched(self, *_: Any, **__: Any) -> Any:
            return brought

        def relative_update(self, inc: int = 1) -> None:
            self.since = time.monotonic()  # another file is whole

    def look(_: Any, came: int, **__: Any) -> None:
        now = time.monotonic()
        if meter.stopped:
            raise RemoteError("The download was stopped.", "Start it again.")
        if max(came, total) > room:
            raise RemoteError(
                f"{url} has more than the {show_size(room)} that the disk of the cache and "
                "cache_limit_gb allow.",
                "Pass a pattern of the files to read, free some space (surefit cache clean), raise "
                "cache_limit_gb, or set cache to a folder on another disk.",
            )
        if came - meter.counted >= LEAST_BYTES:
            meter.counted, meter.since = came, now
        if now - meter.since > WAIT_SECONDS:
            what = f"{came - meter.counted:,} bytes in {WAIT_SECONDS:g} seconds"
            raise RemoteError(f"{url} brought only {what}.", "Try again later.")
        reading.progress("downloading, MB", came // 10**6, max(total, came) // 10**6 + 1)

    meter, brought = Meter(), Callback(hooks={"bytes": look})
    brought.relative_update(0)
    return meter


def _get(url: str, files: Mapping[str, RemoteFile], parts: Mapping[str, Path], meter: Any) -> None:
    """Download the files that are not there yet, and check that they are whole, and data."""
    left = _not_whole(files, parts)
    places, targets = [files[path].place for path in left], [str(parts[path]) for path in left]
    try:
        _open(url)[0].get(places, targets, callback=meter)
    except BaseException:  # the thread of fsspec would go on writing
        meter.stopped = True
        raise
    for path in _not_whole(files, parts):
        if (size := files[path].size) is not None:
            found = parts[path].stat().st_size
            raise EOFError(f"{path} ends after {found:,} of the {size:,} bytes that it has")
    for path in left if protocol_of(url) == "http" else ():
        with parts[path].open("rb") as stream:
            if not path.lower().endswith(_TEXTS) and _HTML.match(stream.read(256)):
                raise RemoteError(
                    f"{url}: the server returns a web page in place of {path}.",
                    "Open the URL in a browser: it may ask to log in, or the file may have moved. "
                    "End the URL of a folder with a slash.",
                )


def _not_whole(files: Mapping[str, RemoteFile], parts: Mapping[str, Path]) -> list[str]:
    """Return the files that are not there in the size that the server has; or are of no size."""
    return [p for p in parts if not parts[p].exists() or parts[p].stat().st_size != files[p].size]


def _open(url: str, progress: Progress = silent) -> tuple[Any, str]:
    """Return the file system of a URL, with the credentials it finds, and the path in it."""
    import fsspec

    options: dict[str, Any] = {"use_listings_cache": False}
    if protocol_of(url) == "http":
        import aiohttp

        wait = aiohttp.ClientTimeout(total=None, sock_connect=WAIT_SECONDS, sock_read=WAIT_SECONDS)
        client = {"timeout": wait, "trust_env": True, "auto_decompress": False}
        client["response_class"] = _limit_pages(url, progress)
        options = {"simple_links": False, "encoded": True, "client_kwargs": client}
        options |= {"headers": {"Accept-Encoding": "identity"}, "skip_instance_cache": True}
        url = quote(with_access(url), safe="%/:=&?~#+!$,;'@()*[]")
    try:
        store, place = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        message = f"{protocol_of(url)}:// needs a package that is not installed."
        raise UsageError(message, f"{first_line(error)}.") from None
    store.invalidate_cache()
    store.batch_size = THREADS
    return store, place


def _limit_pages(url: str, progress: Progress) -> type[Any]:
    """Return the class of the answers of a server, whose pages of links end at some time."""
    import aiohttp

    end, came, pages = time.monotonic() + LIST_SECONDS, 0, 0

    class Page(aiohttp.ClientResponse):
        async def text(self, encoding: str | None = None, errors: str = "strict") -> str:
            nonlocal came, pages
            parts, pages = [], pages + 1
            async for part in self.content.iter_any():
                parts.append(part)
                came += len(part)
                if came > LIST_BYTES or time.monotonic() > end:
                    raise RemoteError(
                        f"{url} lists files without end: more than {show_size(LIST_BYTES)} of "
                        f"names, or for {LIST_SECONDS:g} seconds.",
                        "Pass the URLs of the files, or of a folder with fewer files.",
                    )
            progress(LOOKING, pages, pages + 1)
            return b"".join(parts).decode(encoding or "utf-8", errors)

    return Page


def _info(store: Any, place: str) -> Any | None:
    """Return what the store has about a place; None if nothing is there."""
    is_http = protocol_of(place) == "http"
    try:
        # fsspec's own limit of time, which headers that trickle do not move
        return store.info(place, **({"timeout": 2 * WAIT_SECONDS} if is_http else {}))
    except FileNotFoundError as error:
        cause = error.__cause__  # over http, every error becomes this one
        if cause is not None and getattr(cause, "status", 0) not in (404, 410):
            raise cause from None
        return None


def _attempt(url: str, make: Callable[[], Made]) -> Made:
    """Call fsspec, again after errors that may pass; others are raised with the URL."""
    for pause in (*PAUSES_SECONDS, None):
        try:
            return make()
        except SurefitError:
            raise
        except Exception as error:  # the package of each protocol has errors of its own
            status = getattr(error, "status", 0)
            is_final = 300 <= status < 500 and status not in (408, 425, 429)
            if pause is None or is_final or isinstance(error, PermissionError):
                reason = first_line(error)
                if status:
                    said = str(getattr(error, "message", "")).strip().partition("\n")[0]
                    reason = f"{status} {said:.100}"
                what = "reached" if isinstance(error, OSError) else "read"
                raise RemoteError(
                    f"{url} cannot be {what}: {reason.rstrip('. ')}.",
                    "Check the URL, the network and the credentials: those that the package of the "
                    "protocol looks for, or http://USER:PASSWORD@HOST/….",
                ) from None
            time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")
