"""A hub on this machine: serves models and datasets of a folder as huggingface_hub asks."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """The address of the hub, and the files that were read from it."""

    address: str
    downloaded: list[str] = field(default_factory=list)


@contextmanager
def serve_hub(models: Path) -> Iterator[FakeHub]:
    """Serve each `owner/name` below a folder."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, with_body: bool) -> None:
            parts = self.path.split("?")[0].strip("/").split("/")
            parts = parts[1:] if parts[0] == "datasets" else parts
            is_about = parts[:2] in (["api", "models"], ["api", "datasets"])
            if is_about and "tree" in parts[4:5]:
                self._send(_list(models, "/".join(parts[2:4]), "/".join(parts[6:])), with_body)
            elif is_about:
                self._send(_describe(models, "/".join(parts[2:4])), with_body)
            elif len(parts) > 4 and parts[2] == "resolve":
                file = models / parts[0] / parts[1] / "/".join(parts[4:])
                content = file.read_bytes() if file.is_file() else None
                if content is not None and with_body:
                    hub.downloaded.append(file.name)
                self._send(content, with_body)
            else:
                self._send(None, with_body)

        def _send(self, content: bytes | None, with_body: bool) -> None:
            self.send_response(404 if content is None else 200)
            if content is None:
                self.send_header("X-Error-Code", "EntryNotFound")
            content = content or b""
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if with_body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = FakeHub(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _describe(models: Path, name: str) -> bytes | None:
    """What the hub says of a model."""
    folder = models / name
    if not folder.is_dir():
        return None
    files = [{"rfilename": str(file.relative_to(folder))} for file in sorted(folder.rglob("*"))]
    return json.dumps({"id": name, "sha": COMMIT, "siblings": files, "tags": []}).encode()


def _list(models: Path, name: str, below: str) -> bytes | None:
    """What the hub says of the files in a folder of a model; None if there is no such folder."""
    folder = models / name / below
    if not folder.is_dir():
        return None
    files = [file for file in sorted(folder.iterdir()) if file.is_file()]
    told = [
        {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": COMMIT} for f in files
    ]
    return json.dumps(told).encode()
