"""The identity of a file is its content: a hash of all of it, never its path or time.

The hash is computed once: the cache remembers it by path, modification and change time, size and
inode. A change of the content changes the change time, which no program can set.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from surefit.data.cache import fingerprint
from surefit.data.cache_use import note_damage, open_cache
from surefit.digests import hash_file
from surefit.errors import UsageError

FILE = "digests.sqlite"
TICK_NS = 50_000_000
"""Two changes of a file within one tick of the clock have the same change time."""
COARSE_TICK_NS = 2_000_000_000
THREADS = 8

Stamp = str
Hashed = tuple[Stamp, str]
Made = TypeVar("Made")
_known: dict[str, Hashed] = {}


def file_fingerprint(path: Path) -> str:
    """The hash of a file's content; the file is read once, until it changes."""
    found = content_hashes([str(path)])[0]
    if found is None:
        if not stat.S_ISREG(os.stat(path).st_mode):  # to open a pipe would wait for a writer
            raise UsageError(f"{path} is not a regular file.", "Pass a file or a folder.")
        return hash_file(path)  # which raises what is wrong
    return found


def content_hashes(paths: Sequence[str]) -> list[str | None]:
    """The hashes of many files, computed in parallel; None for what is not a readable file."""
    places = [os.path.abspath(path) for path in paths]
    stamps = {place: _stamp(place) for place in dict.fromkeys(places)}
    new = {p: s for p, s in stamps.items() if s is not None and _known.get(p, ("",))[0] != s}
    if new:
        _known.update(_with_memory(partial(_recall, new)) or {})
        missing = [place for place, stamp in new.items() if _known.get(place, ("",))[0] != stamp]
        made = dict(zip(missing, _hash_all(missing), strict=True))
    else:
        made = {}
    found = {place: made[place] if place in made else _known.get(place) for place in stamps}
    return [
        about[1] if stamps[place] is not None and (about := found[place]) is not None else None
        for place in places
    ]


def _stamp(path: str) -> Stamp | None:
    """What changes when a file does; None where there is no regular file."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(about.st_mode):
        return None
    return f"{about.st_mtime_ns} {about.st_ctime_ns} {about.st_size} {about.st_dev} {about.st_ino}"


def _hash_all(places: Sequence[str]) -> list[Hashed | None]:
    """Hash files, and remember those that have not just been written."""
    if len(places) > 1:
        with ThreadPoolExecutor(min(THREADS, len(places))) as pool:
            made = list(pool.map(_hash_stable, places))
    else:
        made = [_hash_stable(place) for place in places]
    settled = {
        place: about
        for place, about in zip(places, made, strict=True)
        if about is not None and _is_settled(about[0])
    }
    _known.update(settled)
    if settled:
        _with_memory(partial(_remember, settled))
    return made


def _hash_stable(place: str) -> Hashed | None:
    """The hash of a file, and the stamp it had before and after it was read."""
    for _ in range(3):
        before = _stamp(place)
        try:
            digest = hash_file(Path(place)) if before is not None else ""
        except OSError:
            return None
        if before is None:
            return None
        if _stamp(place) == before:
            return before, digest
    raise UsageError(f"{place} changes while it is read.", "Wait until it is written.")


def _is_settled(stamp: Stamp) -> bool:
    """Whether a later change of the file would have another change time."""
    changed = int(stamp.split()[1])
    tick = COARSE_TICK_NS if changed % 1_000_000 == 0 else TICK_NS
    return time.time_ns() - changed > tick


def _with_memory(use: Callable[[sqlite3.Connection], Made]) -> Made | None:
    """Use the remembered hashes in the cache; None where that is not possible just now."""
    path = open_cache() / FILE
    try:
        with closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as memory:
            memory.execute("PRAGMA journal_mode=MEMORY")
            memory.execute("PRAGMA synchronous=OFF")
            memory.execute(
                "CREATE TABLE IF NOT EXISTS digests "
                "(path TEXT PRIMARY KEY, stamp TEXT, digest TEXT, checksum TEXT) WITHOUT ROWID"
            )
            return use(memory)
    except sqlite3.OperationalError:  # locked, or no room: files are hashed again
        return None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        note_damage(path, str(error))
        path.unlink(missing_ok=True)
        return None


def _recall(stamps: Mapping[str, Stamp], memory: sqlite3.Connection) -> dict[str, Hashed]:
    """The remembered hashes of files that have not changed since."""
    found = {}
    for place, stamp in stamps.items():
        query = "SELECT stamp, digest, checksum FROM digests WHERE path = ?"
        row = memory.execute(query, (_text(place),)).fetchone()
        if row is not None and row[0] == stamp and row[2] == fingerprint(_text(place), *row[:2]):
            found[place] = (stamp, str(row[1]))
    return found


def _remember(rows: Mapping[str, Hashed], memory: sqlite3.Connection) -> None:
    full = [
        (_text(place), *about, fingerprint(_text(place), *about)) for place, about in rows.items()
    ]
    memory.execute("BEGIN IMMEDIATE")
    memory.executemany("INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?)", full)
    memory.execute("COMMIT")


def _text(place: str) -> str:
    """A path as text that sqlite stores, also if it is not UTF-8."""
    return os.fsencode(place).decode("utf-8", "backslashreplace")
