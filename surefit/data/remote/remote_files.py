"""Remote files through fsspec: what a URL stands for, and downloads that end in time."""

from __future__ import annotations

import errno
import multiprocessing
import posixpath
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from glob import has_magic
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote, unquote, urlsplit

from surefit.core.digests import hash_file
from surefit.core.files import move_inside
from surefit.core.foreign import first_line
from surefit.data.cache import fingerprint
from surefit.data.remote.remote_url import PACKAGES, protocol_of, with_access
from surefit.errors import SurefitError, UsageError
from surefit.progress import Progress

THREADS = 8
WAIT_SECONDS = 60.0
"""How long a server may send nothing."""
PAUSES_SECONDS: tuple[float, ...] = (1.0, 2.0, 4.0)
"""How long to wait before an attempt after an error that may pass."""
UNKNOWN_BYTES = 64 << 30
"""The most that is read of a file whose size the server does not tell."""
DEEPEST = 16
_FULL = (errno.ENOSPC, errno.EDQUOT)
_HTML = re.compile(rb"\s*(<!doctype html|<html)", re.IGNORECASE)

Item = TypeVar("Item")
Made = TypeVar("Made")


class RemoteError(SurefitError):
    """A remote file that could not be read."""


@dataclass(frozen=True)
class RemoteFile:
    """One file: its URL, its path below the folder that is listed, and what identifies it."""

    url: str
    path: str
    size: int | None = None
    version: str | None = None
    """Changes with the content; None over http without a strong ETag."""


@dataclass(frozen=True)
class Listing:
    """The files that a URL stands for, by their paths below the folder they are in."""

    root: str
    kind: Literal["file", "folder", "pattern"]
    files: Mapping[str, RemoteFile] = field(default_factory=dict)


def list_url(url: str) -> Listing:
    """List one file, the files of a folder or those that match a pattern."""
    listing = _attempt(url, lambda: _list(url))
    if not listing.files:
        what = "matches" if listing.kind == "pattern" else "is at"
        raise UsageError(f"No file {what} {url}.", "Check the URL.")
    return listing


def _list(url: str) -> Listing:
    store, place = _open(url)
    bare = (url.partition("?")[0] if _is_http(url) else url).rstrip("/")
    strictly = {"on_error": "raise", "maxdepth": DEEPEST} if _is_http(url) else {}
    if has_magic(unquote(urlsplit(url).path) if _is_http(url) else url):
        root = re.split(r"[*?\[]", url, maxsplit=1)[0].rpartition("/")[0]
        found = store.glob(place, detail=True, **strictly)
        return Listing(f"{root}/", "pattern", _inside(root, found))
    is_page = _is_http(url) and bare == url.rstrip("/") != url
    about = None if is_page else _info(store, place)
    if is_page or (about is not None and about["type"] == "directory"):
        try:
            found = store.find(f"{place.rstrip('/')}/", detail=True, **strictly)
        except FileNotFoundError:
            found = {}
        inside = _inside(bare, found)
        shown = {path: file for path, file in inside.items() if "/." not in f"/{path}"}
        return Listing(f"{bare}/", "folder", shown)
    root, _, name = bare.rpartition("/")
    path = posixpath.basename(unquote(name) if _is_http(url) else name) or "data"
    files = {path: _file(url, path, about)} if about is not None else {}
    return Listing(f"{root}/", "file", files)


def _inside(root: str, found: dict[str, Any]) -> dict[str, RemoteFile]:
    """The files of a listing below the URL of a folder; names that no file can have are refused."""
    head = _open(f"{root}/")[1].rstrip("/")
    files = {}
    for place, about in sorted(found.items()):
        inner = posixpath.normpath(place.removeprefix(head).lstrip("/"))
        if about.get("type") != "file" or inner == "." or re.search(r"[?#]", inner):
            continue
        path = unquote(inner) if _is_http(root) else inner
        parts = path.split("/")
        if re.search(r"[\0\\]", path) or any(p in ("", ".", "..") or len(p) > 255 for p in parts):
            raise RemoteError(
                f"{root} lists {path!r}, which is not a name that a file can have here.",
                "Rename it on the server, or pass a pattern that leaves it out.",
            )
        files[path] = _file(f"{root}/{inner}", path, about)
    return files


def look_at(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Those of the files that exist, with their sizes and versions, sorted."""

    def look(file: RemoteFile) -> RemoteFile | None:
        if file.version is not None:
            return file
        about = _attempt(file.url, lambda: _info(*_open(file.url)))
        is_file = about is not None and about["type"] == "file"
        return _file(file.url, file.path, about) if is_file else None

    found = (file for file in in_threads(look, files) if file is not None)
    return sorted(found, key=lambda file: file.path)


def download(
    files: Sequence[RemoteFile], folder: Path, scratch: Path, progress: Progress
) -> Iterator[tuple[RemoteFile, str]]:
    """Download files into a folder, and yield each with its digest when it is there, whole."""
    from fsspec.callbacks import Callback

    total = sum(file.size or 0 for file in files)
    came, last = Counter[RemoteFile](), (0, time.monotonic())
    stopped = threading.Event()

    class Meter(Callback):
        """Counts the bytes of a file; ends its download at the next block where it must."""

        def __init__(self, file: RemoteFile) -> None:
            super().__init__()
            self.file, came[file] = file, 0

        def relative_update(self, inc: int = 1) -> None:
            came[self.file] += inc
            if stopped.is_set():
                raise RemoteError("The download was stopped.", "Start it again.")
            if self.file.size is None and came[self.file] > UNKNOWN_BYTES:
                what = f"has more than the {UNKNOWN_BYTES:,} bytes that surefit reads of a file of"
                raise RemoteError(f"{self.file.url} {what} unknown size.", "Check the server.")

    def fetch(file: RemoteFile) -> tuple[RemoteFile, str]:
        part = scratch / fingerprint(file.path)

        def get() -> None:
            store, place = _open(file.url)
            store.get_file(place, str(part), callback=Meter(file))
            _check_content(file, part)

        _attempt(file.url, get)
        digest = hash_file(part)
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        move_inside(part, folder / file.path)
        return file, digest

    def watch() -> None:
        nonlocal last
        now = came.total()
        progress("downloading, MB", min(now, max(total, now) - 1) // 10**6, total // 10**6 + 1)
        last = (now, time.monotonic()) if now != last[0] else last
        if time.monotonic() - last[1] > 2 * WAIT_SECONDS:
            urls = ", ".join(file.url for file in [*came][:3])
            message = f"Nothing came from {urls} for {2 * WAIT_SECONDS:g} seconds."
            raise RemoteError(message, "Check the network; whole files are not read again.")

    try:
        yield from in_threads(fetch, files, watch)
    finally:  # nobody waits for the other threads, which would go on writing
        stopped.set()
    if files:
        progress("downloading, MB", total // 10**6 + 1, total // 10**6 + 1)


def in_threads(
    make: Callable[[Item], Made], items: Sequence[Item], watch: Callable[[], None] = lambda: None
) -> Iterator[Made]:
    """Yield `make(item)` of each, in any order; Ctrl-C and an error do not wait for the others."""
    with ThreadPool(min(THREADS, len(items) or 1)) as pool, suppress(StopIteration):
        made = pool.imap_unordered(make, items)
        while True:
            try:
                yield made.next(timeout=0.2)
            except multiprocessing.TimeoutError:
                watch()


def _is_http(url: str) -> bool:
    return protocol_of(url) in ("http", "https")


def _open(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, with the credentials it finds, and the path in it."""
    import fsspec

    options: dict[str, Any] = {"use_listings_cache": False}
    try:
        if _is_http(url):
            import aiohttp

            waits = aiohttp.ClientTimeout(
                total=None, sock_connect=WAIT_SECONDS, sock_read=WAIT_SECONDS
            )
            client = {"timeout": waits, "trust_env": True, "auto_decompress": False}
            headers = {"Accept-Encoding": "identity"}
            options = {"simple_links": False, "encoded": True, "headers": headers}
            options["client_kwargs"] = client
            url = quote(with_access(url), safe="%/:=&?~#+!$,;'@()*[]")
        store, place = fsspec.core.url_to_fs(url, **options)
    except ImportError:
        package = PACKAGES[protocol_of(url)]
        raise UsageError(
            f"{protocol_of(url)}:// needs the package {package}, which is not installed.",
            f"Install it: pip install {package}",
        ) from None
    store.invalidate_cache()
    return store, place


def _info(store: Any, place: str) -> Any | None:
    """What the store tells of a place; None if nothing is there."""
    try:
        return store.info(place)
    except FileNotFoundError as error:
        cause = error.__cause__  # over http, every error becomes this one
        if _is_http(place) and cause and getattr(cause, "status", 0) not in (404, 410):
            raise cause from None
        return None


def _file(url: str, path: str, about: Any) -> RemoteFile:
    size = about.get("size")
    version = str(about.get("ETag") or "W/") if _is_http(url) else fingerprint(about)
    strong = None if version.startswith("W/") else version
    return RemoteFile(url, path, None if size is None else int(size), strong)


def _check_content(file: RemoteFile, part: Path) -> None:
    """Raise a RemoteError unless the whole of a file came, and not a web page in its place."""
    found = part.stat().st_size
    if file.size is not None and found != file.size:
        raise EOFError(f"it ends after {found:,} of the {file.size:,} bytes that it has")
    with part.open("rb") as stream:
        is_text = file.path.lower().endswith((".html", ".htm", ".txt"))
        if _is_http(file.url) and not is_text and _HTML.match(stream.read(256)):
            raise RemoteError(
                f"{file.url}: the server returns a web page in place of the file.",
                "Open the URL in a browser: it may ask to log in, or the file may have moved. End "
                "the URL of a folder with a slash.",
            )


def _attempt(url: str, make: Callable[[], Made]) -> Made:
    """Call a store's package, again after errors that may pass; others are raised with the URL."""
    for pause in (*PAUSES_SECONDS, None):
        try:
            return make()
        except SurefitError:
            raise
        except Exception as error:  # each package has errors of its own
            if isinstance(error, OSError) and (error.filename or error.errno in _FULL):
                raise  # on this side
            status = getattr(error, "status", 0)
            may_pass = not 300 <= status < 500 or status in (408, 425, 429)
            if pause is None or not may_pass or isinstance(error, PermissionError):
                raise _explain(url, error, status) from None
            time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def _explain(url: str, error: Exception, status: int) -> RemoteError:
    reason = f"{status} {getattr(error, 'message', '')}" if status else first_line(error)
    reason = reason.rstrip(". ")
    if isinstance(error, PermissionError) or status in (401, 403, 407):
        fix = "Set the credentials where the package of the protocol looks for them."
        if _is_http(url):
            fix = "Pass the URL with the credentials it needs: http://USER:PASSWORD@HOST/…"
        return RemoteError(f"{url} may not be read: {reason}.", fix)
    what = "reached" if isinstance(error, OSError) else "read"
    return RemoteError(f"{url} cannot be {what}: {reason}.", "Check the URL and the network.")
