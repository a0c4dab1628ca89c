"""Files over http and https, by the standard library: one stream per file, resumed by ranges."""

from __future__ import annotations

import base64
import fnmatch
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from glob import has_magic
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

from surefit import __version__
from surefit.data.remote.download import look_at_all
from surefit.data.remote.remote_file import (
    MOST_FILES,
    ChangedError,
    Listing,
    RemoteError,
    RemoteFile,
    UnreachableError,
    strong,
)
from surefit.data.remote.remote_url import signed, user_of

WAIT_SECONDS = 30.0
CHUNK_BYTES = 1 << 20
PAGE_BYTES = 1 << 24
"""The longest page that is searched for links to files."""
DEEPEST = 16
TRANSIENT = frozenset((408, 425, 429, 500, 502, 503, 504))
NO_HEAD = frozenset((400, 403, 405, 501))
"""Answers of servers that know only GET, or of URLs that are signed for GET."""
_HTML = re.compile(rb"\s*(<!doctype html|<html)", re.IGNORECASE)


class _SameOrigin(urllib.request.HTTPRedirectHandler):
    """Redirects are followed; credentials are sent on only to the host they were given for."""

    def redirect_request(self, req: Any, *rest: Any) -> urllib.request.Request | None:
        made = super().redirect_request(req, *rest)
        if made is not None:
            made.remove_header("Authorization")
            _authorize(made, made.full_url)
            if req.get_method() == "HEAD":
                made.method = "HEAD"
        return made


_open = urllib.request.build_opener(_SameOrigin()).open


class HttpFiles:
    """Files of http servers; folders are pages with links, as servers list them."""

    def list_files(self, url: str) -> Listing | None:
        """One file, or the files that a page links to in its own folder and below.

        Where the name has no ending and the URL no query, the answer decides: a web page is a
        folder, all else a file.
        """
        path = urlsplit(url).path
        if has_magic(unquote(path)):
            root = url[: url.index(path)] + path.rpartition("/")[0] + "/"
            pattern = unquote(path.rpartition("/")[2])
            if has_magic(unquote(urlsplit(root).path)):
                fix = "Give one URL for each folder; * stands for a part of a file name only."
                raise RemoteError(f"{url} has a pattern in the name of a folder.", fix)
            names = [name for name in _links(root) if not name.endswith("/")]
            chosen = [n for n in names if fnmatch.fnmatchcase(unquote(n), pattern)]
            return Listing(root, self._look_at(root, chosen), "pattern")
        last, query = path.rpartition("/")[2], urlsplit(url).query
        is_named = bool(last and ("." in last or query))
        headers = _headers(url)
        if headers is not None and (is_named or not _is_page(headers)):
            above, _, name = path.rstrip("/").rpartition("/")
            root = urlsplit(url)._replace(path=f"{above}/", query="", fragment="").geturl()
            sent = headers.get_filename() if query or "." not in last else None
            path = (sent or unquote(name)).rpartition("/")[2] or "data"
            return Listing(root, (_file(url, path, headers),), "file")
        if is_named:
            return None
        root = url.partition("?")[0].rstrip("/") + "/"
        found = self._look_at(root, _names_below(root))
        return Listing(root, found, "folder") if found else None

    def _look_at(self, root: str, names: list[str]) -> tuple[RemoteFile, ...]:
        found = dict(look_at_all([(root + name, unquote(name)) for name in names], self))
        return tuple(file for _, file in sorted(found.items()) if file is not None)

    def look(self, url: str, path: str) -> RemoteFile | None:
        """Size and ETag of a file, from the headers of an answer."""
        headers = _headers(url)
        return None if headers is None else _file(url, path, headers)

    @contextmanager
    def read(self, file: RemoteFile, start: int) -> Iterator[Iterator[bytes]]:
        """The content of a file in one answer; from `start` on if the server can."""
        begun = start if start and file.version is not None else 0
        headers = {"Range": f"bytes={begun}-", "If-Range": f'"{file.version}"'} if begun else {}
        try:
            with _request(file.url, "GET", headers) as answer:
                if begun and answer.status != 206:
                    raise ChangedError(f"{file.url} cannot be resumed.", transient=True)
                version = strong(answer.headers.get("ETag"))
                if version != file.version:
                    raise ChangedError(f"{file.url} changed while it was read.", transient=True)
                yield _chunks(answer, file)
        except _RefusedError as error:
            raise error.as_remote(file.url) from None


class _RefusedError(Exception):
    """An answer that is not the content."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason

    def as_remote(self, url: str) -> RemoteError:
        """What it means for the user."""
        said = f"{url}: the server answers {self.status} {self.reason}".rstrip() + "."
        if self.status in (401, 403, 407):
            fix = "Pass the URL with the credentials it needs: http://USER:PASSWORD@HOST/…"
            return UnreachableError(said, fix)
        transient = self.status in TRANSIENT
        return (UnreachableError if transient else RemoteError)(said, transient=transient)


@contextmanager
def _request(url: str, method: str, headers: Mapping[str, str] | None = None) -> Iterator[Any]:
    """The answer to one request; errors of the network as what they mean."""
    target = quote(signed(url), safe="%/:=&?~#+!$,;'@()*[]")
    given = {"User-Agent": f"surefit/{__version__}", "Accept-Encoding": "identity"}
    request = urllib.request.Request(target, headers={**given, **(headers or {})}, method=method)
    _authorize(request, url)
    try:
        with _open(request, timeout=WAIT_SECONDS) as answer:
            yield answer
    except urllib.error.HTTPError as error:
        error.close()
        raise _RefusedError(error.code, str(error.reason).splitlines()[0][:80]) from None
    except http.client.HTTPException as error:
        message = f"{url}: the answer of the server is not HTTP ({type(error).__name__})."
        raise RemoteError(message, transient=True) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        shown = (str(reason).splitlines() or [type(error).__name__])[0][:160]
        raise UnreachableError(
            f"{url} cannot be reached: {shown}.", "Check the URL and the network.", transient=True
        ) from None


def _authorize(request: urllib.request.Request, url: str) -> None:
    user = user_of(url)
    if user is not None:
        token = base64.b64encode(unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")


def _headers(url: str) -> Message | None:
    """The headers of what is at a URL; None if nothing is."""
    try:
        try:
            with _request(url, "HEAD") as answer:
                return answer.headers  # type: ignore[no-any-return]
        except _RefusedError as error:
            if error.status not in NO_HEAD:
                raise
        with _request(url, "GET") as answer:  # closed before its content is read
            return answer.headers  # type: ignore[no-any-return]
    except _RefusedError as error:
        if error.status in (404, 410):
            return None
        raise error.as_remote(url) from None


def _file(url: str, path: str, headers: Message) -> RemoteFile:
    return RemoteFile(url, path, _length(headers), strong(headers.get("ETag")))


def _is_page(headers: Message) -> bool:
    return (headers.get("Content-Type") or "").startswith("text/html")


def _length(headers: Message) -> int | None:
    text = (headers.get("Content-Length") or "").strip()
    encoded = (headers.get("Content-Encoding") or "identity").lower() != "identity"
    return int(text) if text.isdecimal() and not encoded else None


def _chunks(answer: Any, file: RemoteFile) -> Iterator[bytes]:
    """The content; a web page in place of data, and an encoding that hides it, are refused."""
    encoding = (answer.headers.get("Content-Encoding") or "identity").lower()
    is_gzip = encoding in ("gzip", "x-gzip") and file.path.lower().endswith((".gz", ".tgz"))
    if encoding != "identity" and not is_gzip:  # some servers say so of files that are packed
        raise RemoteError(
            f"{file.url} is sent in the encoding {encoding!r}, which was not asked for.",
            "Have the server send the file as it is.",
        )
    is_page = _is_page(answer.headers)
    first = True
    while chunk := answer.read1(CHUNK_BYTES):  # what has come, however little
        if first and is_page and _HTML.match(chunk) and not file.path.lower().endswith(".html"):
            raise RemoteError(
                f"{file.url}: the server returns a web page in place of the file.",
                "Open the URL in a browser: it may ask to log in, or the file may have moved. End "
                "the URL of a folder with a slash.",
            )
        first = False
        yield chunk


class _LinkParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _links(root: str) -> list[str]:
    """Names of the files and folders (with a slash) that a page links to in its own folder."""
    try:
        with _request(root, "GET") as answer:
            if not _is_page(answer.headers):
                return []
            page = answer.read(PAGE_BYTES)
    except _RefusedError as error:
        if error.status in (404, 410):
            return []
        raise error.as_remote(root) from None
    parser = _LinkParser()
    parser.feed(page.decode("utf-8", "replace"))
    found = set()
    for link in parser.links:
        full = urldefrag(urljoin(root, link)).url.partition("?")[0]
        name = full.removeprefix(root)
        if full.startswith(root) and name and "/" not in name.rstrip("/"):
            found.add(name)
    return sorted(found)


def _names_below(root: str) -> list[str]:
    """The paths of all files that a page and the pages of its folders link to."""
    found: list[str] = []
    folders = [("", 0)]
    while folders:
        folder, depth = folders.pop(0)
        for name in _links(root + folder):
            if name.endswith("/") and depth < DEEPEST:
                folders.append((folder + name, depth + 1))
            elif not name.endswith("/"):
                found.append(folder + name)
        if len(found) + len(folders) > MOST_FILES:
            raise RemoteError(f"{root} has more than {MOST_FILES:,} files.", "Pass a pattern.")
    return sorted(found)
