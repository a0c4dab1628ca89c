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
