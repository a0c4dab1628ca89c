"""The cache folder, and the keys of its entries."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

_EDGE_BYTES = 64 * 1024
_chosen: ContextVar[Path | None] = ContextVar("chosen_cache", default=None)


@contextmanager
def use_cache(folder: str | None) -> Iterator[None]:
    """Use `folder` as the cache while the block runs; None for the default.

    >>> with use_cache("/tmp/elsewhere"):
    ...     str(cache_folder())
    '/tmp/elsewhere'
    """
    before = _chosen.set(Path(folder).absolute() if folder else None)
    try:
        yield
    finally:
        _chosen.reset(before)


def cache_folder() -> Path:
    """The config's `cache`, else `$SUREFIT_CACHE`, else `~/.cache/surefit`."""
    named = os.environ.get("SUREFIT_CACHE")
    return _chosen.get() or (Path(named) if named else Path.home() / ".cache" / "surefit")


def fingerprint(*parts: Any) -> str:
    """A short key that changes when any of the JSON-like parts changes."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def hash_bytes(buffer: Any) -> str:
    """A key of some bytes."""
    return hashlib.blake2b(buffer, digest_size=16).hexdigest()


@cache
def module_fingerprint(name: str) -> str:
    """A key of the source of a loaded module, by its name."""
    return fingerprint(inspect.getsource(sys.modules[name]))


def file_fingerprint(path: Path) -> str:
    """A key of a file's content without reading all of it: size, time, first and last bytes."""
    stat = path.stat()
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        digest.update(file.read(_EDGE_BYTES))
        if stat.st_size > _EDGE_BYTES:
            file.seek(max(_EDGE_BYTES, stat.st_size - _EDGE_BYTES))
            digest.update(file.read(_EDGE_BYTES))
    return fingerprint(str(path.resolve()), stat.st_size, stat.st_mtime_ns, digest.hexdigest())
