"""Entries of the cache: folders with the digests of their files, verified when they are opened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from surefit.core import digests
from surefit.core.foreign import read_json
from surefit.data.cache import entry_folder, lock_entry, new_entry, verify_entry
from surefit.data.file_identity import content_hashes

Made = TypeVar("Made")
VALUE = "value.json"


def open_entry(
    kind: str, key: str, fill: Callable[[Path], object], read: Callable[[Path], Made]
) -> Made:
    """Read an entry; if there is none or it is damaged, `fill` a new folder first."""
    folder = entry_folder(kind, key)
    if is_sound(folder):
        try:
            return read(folder)
        except Exception:  # a fault that no change of the files shows: verify all of them
            if verify_entry(folder):
                raise
    with lock_entry(folder):
        if not is_sound(folder):  # else another process has just written it
            with new_entry(folder) as temporary:
                fill(temporary)
    return read(folder)


def open_json(kind: str, key: str, make: Callable[[], Any]) -> Any:
    """Return a JSON value in the cache; if it is not there, `make` it."""

    def fill(folder: Path) -> None:
        (folder / VALUE).write_text(json.dumps(make(), allow_nan=False), encoding="utf-8")

    return open_entry(kind, key, fill, lambda f: read_json(f / VALUE, object))


def is_sound(folder: Path) -> bool:
    """Whether an entry is there as it was written; a damaged one is reported and removed.

    Large files that have not changed since they were last read whole are not read again.
    """
    paths = [folder / name for name in sorted(digests.listed_files(folder) or ())]
    known = dict(zip(paths, content_hashes([str(path) for path in paths]), strict=True))
    return verify_entry(folder, lambda path: known.get(path) or digests.hash_file(path))
