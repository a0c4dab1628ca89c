"""A small HTTP server on this machine, with ranges, ETags and every bad habit a test asks for."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


@dataclass
class Site:
    """What is served, how, and what was asked for."""

    files: dict[str, bytes]
    etags: str = "strong"
    """`strong`, `weak` or `none`."""
    lengths: bool = True
    password: str = ""
    failures: int = 0
    """How many requests for content fail with 503 before one succeeds."""
    cut: int | None = None
    """Content ends after so many bytes, whatever its length is said to be."""
    cuts: int = 10**9
    """How many answers are cut."""
    endless: bool = False
    said: str = ""
    """The Content-Length that is said, whatever is sent."""
    status_line: str = ""
    """The first line of each answer, and nothing else."""
    grows: str = ""
    """Folders without end: `wide` have a page that never ends, `deep` have ever more of them."""
    chunk_seconds: float = 0.0
    chunk_bytes: int = 1024
    held: threading.Event | None = None
    """Content stops after half of it until this is set, unless it is short."""
    redirects: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and range of each request."""
    url: str = ""

    def gets(self) -> list[str]:
        """The paths of files whose content was asked for."""
        return [path for method, path, _ in self.asked if method == "GET" and path in self.files]


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *about: Any) -> None:
        """Say nothing."""

    def _answer(self, with_body: bool) -> None:
        site: Site = self.server.site
        path = unquote(self.path.partition("?")[0])
        site.asked.append((self.command, path, self.headers.get("Range", "")))
        wanted = "Basic " + base64.b64encode(f"me:{site.password}".encode()).decode()
        if site.password and self.headers.get("Authorization") != wanted:
            return self._status(401)
        if site.status_line:
            self.wfile.write(f"{site.status_line}\r\nContent-Length: 0\r\n\r\n".encode())
            return None
        if path in site.redirects:
            self.send_response(302)
            self.send_header("Location", site.redirects[path])
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if path not in site.files and (path.endswith("/") or site.grows):
            return self._endless_index() if site.grows == "wide" else self._index(site, path)
        if path not in site.files and any(name.startswith(f"{path}/") for name in site.files):
            site.redirects[path] = f"{path}/"
            return self._answer(with_body)
        if path not in site.files:
            return self._status(404)
        if with_body and site.failures > 0:
            site.failures -= 1
            return self._status(503)
        return self._content(site, path, with_body)

    def _status(self, code: int) -> None:
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _index(self, site: Site, path: str) -> None:
        inside = [name.removeprefix(path) for name in site.files if name.startswith(path)]
        inside += [f"{k}/" for k in range(50)] if site.grows else []
        if not inside:
            return self._status(404)
        names = {name if "/" not in name else name.partition("/")[0] + "/" for name in inside}
        links = "".join(f'<a href="{name}">{name}</a>' for name in sorted(names))
        page = f'<html><a href="../">up</a><a href="?C=N">sort</a>{links}</html>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)
        return None

    def _endless_index(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b'<a href="a.jsonl">a.jsonl</a>' * 1000)
        except OSError:
            self.close_connection = True

    def _content(self, site: Site, path: str, with_body: bool) -> None:
        content = site.files[path]
        etag = '"' + hashlib.md5(content).hexdigest() + '"'
        first, last = 0, None
        asked = self.headers.get("Range", "")
        if asked and self.headers.get("If-Range", etag) == etag and site.etags == "strong":
            bounds = asked.removeprefix("bytes=").split("-")
            first, last = int(bounds[0]), int(bounds[1]) + 1 if bounds[1] else None
        body = content[first:last]
        self.send_response(206 if first or last else 200)
        if site.etags != "none":
            self.send_header("ETag", etag if site.etags == "strong" else "W/" + etag)
        is_cut = with_body and site.cut is not None and site.cuts > 0
        if site.lengths and not site.endless and not is_cut:
            self.send_header("Content-Length", site.said or str(len(body)))
        self.send_header("Content-Type", site.types.get(path, "application/octet-stream"))
        self.end_headers()
        if not with_body:
            return
        cut = site.cut if is_cut else None
        site.cuts -= is_cut
        try:
            while site.endless:
                self.wfile.write(b"x" * 65536)
            sent = body[:cut]
            for start in range(0, max(1, len(sent)), site.chunk_bytes):
                self.wfile.write(sent[start : start + site.chunk_bytes])
                time.sleep(site.chunk_seconds)
                if site.held is not None and start > len(sent) // 2:
                    site.held.wait()
        except OSError:
            return
        self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    site: Site


@contextmanager
def serve(files: dict[str, bytes], **habits: Any) -> Iterator[Site]:
    """A server on a free port of this machine, while the block runs."""
    server = _Server(("127.0.0.1", 0), _Handler)
    site = server.site = Site({f"/{name}": content for name, content in files.items()}, **habits)
    site.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
