"""A file or folder is written whole or not at all: a temporary beside it, fsync, rename."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import IO, Any

from surefit import digests

Later = Callable[[Callable[[], None]], None]
"""Takes what is to be done, and does it when it suits."""


_waits: ContextVar[bool] = ContextVar("waits_for_the_disk", default=True)


@contextmanager
def without_waiting() -> Iterator[None]:
    """Do not wait for the disk while the block runs: what it writes is deleted again."""
    before = _waits.set(False)
    try:
        yield
    finally:
        _waits.reset(before)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def _sync(path: Path) -> None:
    if not _waits.get():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`; a reader sees the old file or the new one, never half of one."""
    write_bytes(path, encode_text(text))


def encode_text(text: str) -> bytes:
    """The text as files have it; a lone surrogate is escaped."""
    return text.encode(errors="backslashreplace")


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path`; a reader sees the old file or the new one."""
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            if _waits.get():
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON; NaN and infinities are refused rather than written."""
    write_bytes(path, encode_json(value))


def encode_json(value: Any) -> bytes:
    """The content of a JSON file; NaN and infinities are refused."""
    return encode_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def new_folder(path: Path, later: Later | None = None, sealed: bool = False) -> Iterator[Path]:
    """Give a temporary folder to fill; it becomes `path` only when the block ends well.

    A folder that is already at `path` is replaced. `later` is given what waits for the disk, to be
    done when it suits; without it, that is done here. A sealed folder has the digests of its files.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if later is None:
        _publish(temporary, path, sealed)
    else:
        later(partial(_publish, temporary, path, sealed))


@contextmanager
def resumable_folder(path: Path, passing: type[Exception] | None = None) -> Iterator[Path]:
    """Like `new_folder`; what a killed process left half filled is given to the next one.

    After an error the half-filled folder is deleted: it would be the same error again, unless it
    is a `passing` one. While another process fills it, a folder of one's own is given.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with lock.open("w") as file:
        if not _take(file):
            with new_folder(path) as temporary:
                yield temporary
            return
        half = path.with_name(f".{path.name}.half")
        half.mkdir(exist_ok=True)
        sweep(half)
        try:
            yield half
            _publish(half, path)
        except Exception as error:
            if passing is None or not isinstance(error, passing):
                shutil.rmtree(half, ignore_errors=True)
            raise
        finally:
            lock.unlink(missing_ok=True)


def _take(file: IO[str]) -> bool:
    """Lock a file until it is closed, unless another process has it, or locks are not to be had."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The one who had it may have deleted it since it was opened: then others lock a new one.
        return os.stat(file.name).st_ino == os.fstat(file.fileno()).st_ino
    except (ImportError, OSError):
        return False


def follow_umask(folder: Path) -> None:
    """Give the files of a folder that was just made the permissions that the umask allows.

    Libraries write some files for their owner only (safetensors does). The folder's own mode is
    what the umask left of 0777; to ask for the umask itself would change it for all threads.
    """
    mode = folder.stat().st_mode & 0o777
    for path in folder.rglob("*"):
        path.chmod(mode if path.is_dir() else mode & 0o666)


def remove_folder(path: Path) -> None:
    """Delete a folder: its name is gone at once, so that no reader meets half of it."""
    retired = _temporary(path)
    os.replace(path, retired)
    shutil.rmtree(retired)


TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


def sweep(folder: Path, older_than_seconds: float = 0) -> list[Path]:
    """Delete what killed writes left in a folder; nobody else may be writing there.

    Where others may, only what is older than any write takes is deleted.
    """
    found = [path for path in folder.glob(".*.tmp") if TEMPORARY.fullmatch(path.name)]
    left = [path for path in found if _is_older(path, older_than_seconds)]
    for path in left:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return left


def _replace_folder(temporary: Path, path: Path) -> None:
    """Give a folder its name, which another folder may have; that one is deleted."""
    retired = _temporary(path)
    if not path.exists():
        os.replace(temporary, path)
        return
    if _exchange(temporary, path):
        retired = temporary
    else:  # for a moment, there is no folder of that name
        os.replace(path, retired)
        os.replace(temporary, path)
    shutil.rmtree(retired, ignore_errors=True)  # what is left of it, `sweep` deletes later


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders at once; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    names = (ctypes.c_char_p(os.fsencode(os.path.abspath(path))) for path in (one, other))
    first, second = names
    return bool(rename(AT_NO_FOLDER, first, AT_NO_FOLDER, second, RENAME_EXCHANGE) == 0)


AT_NO_FOLDER, RENAME_EXCHANGE = -100, 2
"""Arguments of Linux's renameat2: the paths are absolute; exchange the two."""


def _is_older(path: Path, seconds: float) -> bool:
    try:
        return seconds <= 0 or time.time() - path.lstat().st_mtime > seconds
    except FileNotFoundError:  # it has just got its name
        return False


def _publish(temporary: Path, path: Path, sealed: bool = False) -> None:
    try:
        if sealed:
            digests.seal(temporary)
        follow_umask(temporary)
        for file in sorted(temporary.rglob("*")):
            _sync(file)
        _sync(temporary)
        _replace_folder(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync(path.parent)
