"""Several remote files at once into a folder: whole, bounded, retried, and resumed."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, TypeVar

from surefit.data.cache import fingerprint
from surefit.data.remote.remote_file import (
    ChangedError,
    Files,
    LocalFaultError,
    RemoteError,
    RemoteFile,
)
from surefit.disk_space import free_bytes
from surefit.errors import RunFailedError
from surefit.gigabytes import show_gb
from surefit.progress import Progress

THREADS = 8
ATTEMPTS = 4
BACK_OFF_SECONDS = 1.0
"""The first pause before another attempt; each later one is twice as long."""
UNKNOWN_BYTES = 64 << 30
"""The most that is read of a file whose size the server does not tell."""
SPARE_BYTES = 1 << 28
PARTS = ".parts"
MEGABYTE = 10**6

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass
class _Count:
    """Bytes that were read, by all threads; and whether they are to stop."""

    total: int
    done: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, num_bytes: int) -> None:
        with self.lock:
            self.done += num_bytes


def download(
    files: Sequence[RemoteFile],
    reader: Files,
    folder: Path,
    progress: Progress,
    have: Mapping[RemoteFile, Path] | None = None,
) -> None:
    """Copy files to their paths in a folder; those in `have` are linked, not read again.

    A half-read file lies in `folder/.parts` and is resumed, if its version is known.
    """
    have = have or {}
    (folder / PARTS).mkdir(exist_ok=True)
    missing = []
    for file in files:
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.version is not None and _is_whole(target, file):
            continue
        target.unlink(missing_ok=True)
        if file not in have or not _link(have[file], target):
            missing.append(file)
    _check_room(folder, missing)
    count = _Count(sum(file.size or 0 for file in missing))

    def report() -> None:
        total = max(count.total, count.done)
        progress("downloading, MB", min(count.done, total - 1) // MEGABYTE, total // MEGABYTE + 1)

    for _ in in_threads(lambda file: _fetch(file, reader, folder, count), missing, count, report):
        pass
    if missing:
        progress("downloading, MB", count.total // MEGABYTE + 1, count.total // MEGABYTE + 1)
    for part in (folder / PARTS).iterdir():
        part.unlink()
    (folder / PARTS).rmdir()


def look_at_all(
    urls: Iterable[tuple[str, str]], reader: Files
) -> Iterator[tuple[str, RemoteFile | None]]:
    """Each path with what is known of the file at its URL, in any order."""

    def look(item: tuple[str, str]) -> tuple[str, RemoteFile | None]:
        url, path = item
        return path, with_retries(lambda: reader.look(url, path))

    yield from in_threads(look, list(urls), _Count(0))


def in_threads(
    make: Callable[[Item], Made],
    items: Sequence[Item],
    count: _Count,
    report: Callable[[], None] = lambda: None,
) -> Iterator[Made]:
    """`make(item)` by a few threads; the first error ends all. Ctrl-C does not wait for them."""
    todo: queue.SimpleQueue[Item] = queue.SimpleQueue()
    for item in items:
        todo.put(item)
    made: queue.SimpleQueue[tuple[Made | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        while not count.stop.is_set():
            try:
                item = todo.get_nowait()
            except queue.Empty:
                return
            try:
                made.put((make(item), None))
            except BaseException as error:
                made.put((None, error))
                return

    for _ in range(min(THREADS, len(items))):
        threading.Thread(target=work, daemon=True).start()
    left = len(items)
    try:
        while left:
            try:
                value, error = made.get(timeout=0.5)
            except queue.Empty:
                report()
                continue
            if error is not None:
                raise error.cause if isinstance(error, LocalFaultError) else error
            left -= 1
            report()
            yield value  # type: ignore[misc]
    finally:
        count.stop.set()


def with_retries(make: Callable[[], Made], stop: threading.Event | None = None) -> Made:
    """The result of a request; an error that may pass is tried again, later and later."""
    for attempt in range(ATTEMPTS):
        try:
            return make()
        except RemoteError as error:
            if not error.transient or attempt + 1 == ATTEMPTS:
                raise
            pause = BACK_OFF_SECONDS * 2**attempt
            if stop is None:
                time.sleep(pause)
            elif stop.wait(pause):
                raise
    raise AssertionError("there is at least one attempt")


def _fetch(file: RemoteFile, reader: Files, folder: Path, count: _Count) -> None:
    part = folder / PARTS / fingerprint(file.path, file.version)
    if file.version is None:
        part.unlink(missing_ok=True)
    with_retries(lambda: _read_rest(file, reader, part, count), count.stop)
    os.replace(part, folder / file.path)


def _read_rest(file: RemoteFile, reader: Files, part: Path, count: _Count) -> None:
    """Read what is missing of a file; a part of another version is thrown away."""
    start = part.stat().st_size if part.exists() and file.version is not None else 0
    if start and start == file.size:
        return
    counted = 0
    try:
        with reader.read(file, start) as chunks, part.open("ab" if start else "wb") as target:
            for num_bytes in chain([start], (_write(c, target, file, count) for c in chunks)):
                count.add(num_bytes)
                counted += num_bytes
            _local(lambda: os.fsync(target.fileno()))
    except RemoteError as error:
        count.add(-counted)
        if isinstance(error, ChangedError):
            part.unlink(missing_ok=True)
        raise
    found = part.stat().st_size
    if file.size is not None and found != file.size:
        raise RemoteError(
            f"{file.url} ends after {found:,} of {file.size:,} bytes.",
            "Upload the file again, or check the server.",
            transient=True,
        )


def _write(chunk: bytes, target: IO[bytes], file: RemoteFile, count: _Count) -> int:
    """Write what has come, within the bounds of the file and of the disk."""
    if count.stop.is_set():
        raise LocalFaultError(InterruptedError("stopped"))
    most = UNKNOWN_BYTES if file.size is None else file.size
    _local(lambda: (target.write(chunk), target.flush()))
    if target.tell() > most:
        said = "the server said" if file.size is not None else "surefit reads of an unknown size"
        raise RemoteError(
            f"{file.url} has more than the {most:,} bytes that {said}.", "Check the server."
        )
    if file.size is None and free_bytes(Path(target.name)) < SPARE_BYTES:
        message = f"{file.url} does not end before the disk of the cache is full."
        raise RemoteError(message, "Check the server, or choose a cache on a larger disk.")
    return len(chunk)


def _local(do: Callable[[], object]) -> None:
    """Do something on this side: its errors are not those of the server."""
    try:
        do()
    except OSError as error:
        raise LocalFaultError(error) from None


def _is_whole(target: Path, file: RemoteFile) -> bool:
    """Whether a file was read before the process was killed; it has its name only when whole."""
    return target.is_file() and (file.size is None or target.stat().st_size == file.size)


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def _check_room(folder: Path, files: Sequence[RemoteFile]) -> None:
    needed, free = sum(file.size or 0 for file in files), free_bytes(folder)
    if needed + SPARE_BYTES > free and files:
        raise RunFailedError(
            f"The data has {show_gb(needed)} to download; the disk of the cache folder "
            f"{folder.parents[1]} has {show_gb(free)} free.",
            "Free some space (surefit cache clean), or choose a folder on another disk with "
            "--set cache=FOLDER or the environment variable SUREFIT_CACHE.",
        )
