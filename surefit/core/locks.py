"""Locks that end with their process: one trains a run, writes an entry or has a scratch folder.

A lock is a file that says who holds it, locked by `filelock` and deleted when it is released. Where
the file system has no such locks, none is taken.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from surefit.core import files
from surefit.core.foreign import parse_json
from surefit.errors import UsageError
from surefit.gigabytes import existing_place

FILE, STOP = ".lock", ".stop"
"""Of a run: who trains it, and that it is to stop after its step."""
STOP_TEXT = b"surefit stops this run after its step, and then deletes this file.\n"
WRITTEN = (
    *("config.yaml", "plan.json", "digests.json", "events.jsonl", "examples.json", "report.html"),
    *("checkpoints", "failures", "model", "surefit", FILE, STOP),
)
"""What surefit and its trackers write in the folder of a run."""
BEGINNING = b'{"pid": '
"""How the text of a lock begins; a killed process may have left less of it."""
SCRATCH = re.compile(r"\..+\.scratch\.[0-9a-f]{8}\.tmp")
YOUNG_SECONDS, OLD_SECONDS = 60.0, 86_400.0
"""A younger scratch folder may belong to a process that has not locked it yet; a younger temporary
folder of another kind, which has no lock, to one that is filling it."""
TRY_SECONDS, PAUSE_SECONDS = 0.15, 0.05
UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class HeldError(Exception):
    """Another process, or another block of this one, holds a lock; its text says who."""


@contextmanager
def locked(path: Path, wait_seconds: float = TRY_SECONDS) -> Iterator[None]:
    """Hold a lock file while the block runs, and delete it then; -1 waits for ever.

    A link, or a file that is not the lock of surefit, is refused.
    """
    _refuse_other_content(path)
    lock = _acquire(path, wait_seconds)
    about = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now().isoformat(timespec="seconds"),
    }
    try:
        if lock is not None:
            with (
                suppress(OSError),  # a full disk: the lock holds without its text
                open(files.open_own(path, os.O_WRONLY | os.O_TRUNC), "w") as file,
            ):
                file.write(json.dumps(about) + "\n")
        yield
    finally:
        if lock is not None and lock.is_locked:  # not in a forked worker
            with suppress(OSError):  # the folder may have been deleted
                files.remove_file(path)
            lock.release()


def _acquire(path: Path, wait_seconds: float) -> Any:
    """Return the `FileLock` that is held; None where the file system has no locks."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, wait_seconds, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(poll_interval=PAUSE_SECONDS)
    except Timeout:
        raise HeldError(describe_holder(path)) from None
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return None
        raise
    return lock


def is_held(path: Path) -> bool:
    """Return whether a process holds a lock; it is not taken."""
    try:
        descriptor = files.open_own(path, os.O_RDONLY)
    except (OSError, UsageError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def share_byte(descriptor: int, byte: int) -> None:
    """Share a byte of an open file with other processes, until the file is closed.

    Where the file system has no locks, nothing is known to be unused.
    """
    with suppress(OSError):
        fcntl.lockf(descriptor, fcntl.LOCK_SH, 1, byte)


@contextmanager
def byte_alone(descriptor: int, byte: int) -> Iterator[bool]:
    """Hold a byte of an open file while the block runs; False where another process shares it."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, byte)


def _refuse_other_content(path: Path) -> None:
    """Refuse a file that is not a lock of surefit: it would be overwritten and deleted."""
    files.refuse_links([path])
    text = files.read_own(path)
    is_ours = text.startswith(BEGINNING) or BEGINNING.startswith(text)
    if os.path.lexists(path) and (not is_ours or os.lstat(path).st_nlink > 1):
        raise UsageError(
            f"{path} is not a lock that surefit wrote.", "Move it away, or choose another folder."
        )


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock, as the file of the lock has it."""

    pid: int
    host: str
    since: str


def describe_holder(path: Path) -> str:
    """Name the process that holds a lock."""
    try:
        about = parse_json(files.read_own(path), Holder, str(path))
        return f"process {about.pid} on {about.host}, since {about.since}"
    except UsageError:  # it has not yet said who it is
        return "another process"


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Hold the run while the block runs; refuses where another process (or block) holds it.

    Who holds it is the only one to write there, so what killed writes left is deleted first. A link
    in place of what is written there is refused: the folder may be a stranger's.
    """
    files.refuse_links(folder / name for name in WRITTEN)
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder / FILE))
        except HeldError as error:
            raise UsageError(
                f"{folder} is being trained by {error}.",
                "Wait until it has ended, or stop it with Ctrl-C or SIGTERM: it then saves its "
                "step.",
            ) from None
        except OSError as error:
            raise UsageError(
                f"{folder} cannot be written: {error.strerror}.",
                "Resume it as its owner, or copy it to a folder of your own.",
            ) from None
        for place in (folder, folder / "checkpoints", folder / "failures"):
            files.sweep(place)
        _forget_stop(folder)  # it was for an earlier process
        held.callback(_forget_stop, folder)
        yield


def ask_to_stop(folder: Path) -> None:
    """Ask the process that trains a run to stop after its step, which it then saves.

    The request is a file: no process is looked for by its number, which a stranger's folder could
    choose.
    """
    if not is_held(folder / FILE):
        raise UsageError(f"{folder} is not being trained.", "Nothing has to be stopped.")
    files.write_bytes(folder / STOP, STOP_TEXT)


def is_asked_to_stop(folder: Path) -> bool:
    """Return whether a run has been asked to stop after its step."""
    return files.read_own(folder / STOP) == STOP_TEXT


def _forget_stop(folder: Path) -> None:
    if is_asked_to_stop(folder):
        files.remove_file(folder / STOP)


@contextmanager
def scratch_folder(output: Path) -> Iterator[Path]:
    """Make a folder on the disk of `output`, removed when the block ends, however it ends.

    What killed processes left there is removed first.
    """
    place = existing_place(output.parent)
    place = place if os.access(place, os.W_OK | os.X_OK) else existing_place(output)
    sweep_scratch(place)
    folder = place / f".{output.name}.scratch.{uuid.uuid4().hex[:8]}.tmp"
    folder.mkdir()
    files.mark(folder)
    try:
        with lock_run(folder):
            yield folder
    finally:
        files.delete(folder)


def sweep_scratch(place: Path) -> None:
    """Remove the scratch folders of killed processes; those of living ones are locked."""
    for path in place.glob(".*.tmp"):
        if not files.TEMPORARY.fullmatch(path.name) or not files.is_marked(path):
            continue
        least = YOUNG_SECONDS if SCRATCH.fullmatch(path.name) else OLD_SECONDS
        if time.time() - path.stat().st_mtime >= least:
            with suppress(UsageError), lock_run(path):  # else it is in use
                files.delete(path)
