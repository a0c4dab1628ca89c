"""Entries of the cache: folders with the digests of their files, verified when they are opened."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from surefit import atomic, digests
from surefit.data.cache import cache_folder
from surefit.data.cache_use import note_damage, open_cache, remove, unwritable, use_entry
from surefit.data.file_identity import content_hashes
from surefit.errors import RunFailedError

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
            if is_sound(folder, fully=True):
                raise
    with writing(), atomic.new_folder(folder) as temporary:
        fill(temporary)
        digests.seal(temporary)
    return read(folder)


def open_json(kind: str, key: str, make: Callable[[], Any]) -> Any:
    """A JSON value in the cache; if it is not there, `make` it."""

    def fill(folder: Path) -> None:
        (folder / VALUE).write_text(json.dumps(make(), allow_nan=False), encoding="utf-8")

    return open_entry(kind, key, fill, lambda f: json.loads((f / VALUE).read_text("utf-8")))


def entry_folder(kind: str, key: str) -> Path:
    """The folder of an entry, which is in use from now on."""
    folder = open_cache() / kind / key
    use_entry(folder)
    return folder


def is_sound(folder: Path, fully: bool = False) -> bool:
    """Whether an entry is there as it was written; a damaged one is reported and removed.

    Files that have not changed since they were last read whole are not read again, unless `fully`.
    """
    if not folder.is_dir():
        return False
    damage = digests.find_damage(folder, hash_of=digests.hash_file if fully else _remembered)
    if damage:
        for each in damage[:3]:
            note_damage(each.path, each.reason)
        remove(folder)
        return False
    with suppress(OSError):
        os.utime(folder / digests.FILE)  # when it was last used
    return True


def _remembered(path: Path) -> str:
    return content_hashes([str(path)])[0] or digests.hash_file(path)


@contextmanager
def writing() -> Iterator[None]:
    """Report a cache that cannot be written to, or whose disk is full."""
    root = cache_folder()
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunFailedError(
                f"The disk of the cache folder {root} is full.",
                "Free some space (surefit cache clean), or choose a folder on another disk with "
                "--set cache=FOLDER or the environment variable SUREFIT_CACHE.",
            ) from None
        inside = error.filename is not None and str(error.filename).startswith(str(root))
        if inside and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise unwritable(root, error) from None
        raise
