"""One process trains a run at a time: a lock on a file in its folder, which ends with the process.

The file says who holds it. Where the system has no such locks, none is taken.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from surefit import atomic
from surefit.errors import UsageError

FILE = ".lock"
TRIES, PAUSE_SECONDS = 3, 0.05
_held: set[int] = set()


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Hold the run while the block runs; refuses where another process (or block) holds it.

    Who holds it is the only one to write there, so what killed writes left is deleted first.
    """
    descriptor = _take(folder / FILE)
    if descriptor is None:
        sweep_run(folder)
        yield
        return
    _held.add(descriptor)
    about = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now().isoformat(timespec="seconds"),
    }
    try:
        with suppress(OSError):  # a full disk: the lock holds without its text
            os.write(descriptor, (json.dumps(about) + "\n").encode())
        sweep_run(folder)
        yield
    finally:
        if descriptor in _held:  # not in a forked worker
            with suppress(OSError):  # the folder may have been deleted
                (folder / FILE).unlink(missing_ok=True)
            _held.discard(descriptor)
            os.close(descriptor)


def sweep_run(folder: Path) -> None:
    """Delete what killed writes left in a run's folder."""
    for place in (folder, folder / "checkpoints", folder / "failures"):
        atomic.sweep(place)


def _take(path: Path) -> int | None:
    """The locked file, emptied; None where the system has no locks."""
    try:
        import fcntl
    except ImportError:
        return None
    for _ in range(TRIES):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise UsageError(
                f"{path.parent} cannot be written: {error.strerror}.",
                "Resume it as its owner, or copy it to a folder of your own.",
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                os.truncate(descriptor, 0)
                return descriptor
        except FileNotFoundError:  # who held it has just deleted it
            pass
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                os.close(descriptor)
                return None
        os.close(descriptor)
        time.sleep(PAUSE_SECONDS)
    raise UsageError(
        f"{path.parent} is being trained by {_holder(path)}.",
        "Wait until it has ended, or stop it with Ctrl-C or SIGTERM: it then saves its step.",
    )


def _holder(path: Path) -> str:
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return f"process {about['pid']} on {about['host']}, since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # it has not yet said who it is
        return "another process"


def _forget_in_child() -> None:
    """A forked worker must not keep the lock of a process that has died."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
