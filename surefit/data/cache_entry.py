"""Entries of the cache, verified when they are opened; and the identity of files, their content.

An entry is a folder with the digests of its files. The identity of a file is a hash of all of it,
never its path or time. What takes long to read is hashed once: the cache remembers the hashes of a
set of files by their paths, modification and change times, sizes and inodes. A change of the
content changes the change time, which no program can set.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from surefit.core import digests, files
from surefit.core.digests import hash_file
from surefit.core.foreign import read_json
from surefit.data.cache import entry_folder, fingerprint, lock_entry, new_entry, verify_entry
from surefit.errors import RunFailedError, UsageError

VALUE = "value.json"
LONG_BYTES = 64_000_000
"""Files with more bytes together are worth remembering: 10 to 60 ms of reading."""
SETTLED_NS = 2_000_000_000
"""Two changes of a file within one tick of the file system's clock have the same change time."""
THREADS = 8

Made = TypeVar("Made")
Stamp = tuple[str, int, int, int, int, int]
_known: dict[Stamp, str] = {}


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
    """Return whether an entry is there as it was written; a damaged one is reported and removed.

    Large files that have not changed since they were last read whole are not read again.
    """
    paths = [folder / name for name in sorted(digests.listed_files(folder) or ())]
    known = dict(zip(paths, content_hashes([str(path) for path in paths]), strict=True))
    return verify_entry(folder, lambda path: known.get(path) or digests.hash_file(path))


def file_fingerprint(path: Path) -> str:
    """Return the hash of a file's content."""
    found = content_hashes([str(path)])[0]
    if found is None:
        if not stat.S_ISREG(os.stat(path).st_mode):  # to open a pipe would wait for a writer
            raise UsageError(f"{path} is not a regular file.", "Pass a file or a folder.")
        return hash_file(path)  # which raises what is wrong
    return found


def content_hashes(paths: Sequence[str]) -> list[str | None]:
    """Return the hashes of many files, computed in parallel; None for what is no readable file."""
    settled_ns = time.time_ns() - SETTLED_NS
    stamps = [_stamp(os.path.abspath(path)) for path in paths]
    new = [each for each in dict.fromkeys(stamps) if each is not None and each not in _known]
    is_settled = all(stamp[2] < settled_ns for stamp in new)
    made = dict(zip(new, _remembered(new, is_settled), strict=True)) if new else {}
    if is_settled:
        _known.update({stamp: found for stamp, found in made.items() if found is not None})
    return [None if each is None else _known.get(each) or made.get(each) for each in stamps]


def _stamp(path: str) -> Stamp | None:
    """Return what changes when a file does; None where there is no regular file."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(about.st_mode):
        return None
    times = (about.st_mtime_ns, about.st_ctime_ns)
    return (path, *times, about.st_size, about.st_dev, about.st_ino)


def _remembered(stamps: Sequence[Stamp], is_settled: bool) -> list[str | None]:
    """Return the hashes of files; of large ones that have not just been written, from the cache."""
    if not is_settled or sum(stamp[3] for stamp in stamps) < LONG_BYTES:
        return _hash_all(stamps)
    folder = entry_folder("hashes", fingerprint([[ascii(path), *rest] for path, *rest in stamps]))
    if verify_entry(folder):
        with suppress(UsageError):
            return read_json(folder / VALUE, list[str | None])
    made = _hash_all(stamps)
    with (
        suppress(OSError, RunFailedError, UsageError),  # no room: they are hashed again
        files.without_waiting(),
        new_entry(folder) as temporary,
    ):
        (temporary / VALUE).write_text(json.dumps(made), encoding="utf-8")
    return made


def _hash_all(stamps: Sequence[Stamp]) -> list[str | None]:
    if len(stamps) == 1:
        return [_hash_stable(stamps[0])]
    with ThreadPoolExecutor(min(THREADS, len(stamps))) as pool:
        return list(pool.map(_hash_stable, stamps))


def _hash_stable(stamp: Stamp) -> str | None:
    """Hash a file that does not change meanwhile; None if it cannot be read."""
    for _ in range(3):
        try:
            digest = hash_file(Path(stamp[0]))
        except OSError:
            return None
        now = _stamp(stamp[0])
        if now == stamp or now is None:
            return digest
        stamp = now
    raise UsageError(f"{stamp[0]} changes while it is read.", "Wait until it is written.")
