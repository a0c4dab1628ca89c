"""The identity of a file is its content: a hash of all of it, never its path or time.

What takes long to read is hashed once: the cache remembers the hashes of a set of files by their
paths, modification and change times, sizes and inodes. A change of the content changes the change
time, which no program can set.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from surefit.core import files
from surefit.core.digests import hash_file
from surefit.core.foreign import read_json
from surefit.data.cache import entry_folder, fingerprint, new_entry, verify_entry
from surefit.errors import RunFailedError, UsageError

KIND, VALUE = "hashes", "hashes.json"
LONG_BYTES = 64_000_000
"""Files with more bytes together are worth remembering: 10 to 60 ms of reading."""
SETTLED_NS = 2_000_000_000
"""Two changes of a file within one tick of the file system's clock have the same change time."""
THREADS = 8

Stamp = tuple[str, int, int, int, int, int]
_known: dict[Stamp, str] = {}


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
    folder = entry_folder(KIND, fingerprint([[ascii(path), *rest] for path, *rest in stamps]))
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
