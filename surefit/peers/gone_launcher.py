"""Ends a process whose launcher (torchrun, `--processes N`) was killed, as SIGTERM would end it.

Processes that torchrun starts have sessions of their own, so neither the end of the launcher nor
Ctrl-C in its terminal reaches them: they would train on, and nobody would know.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from contextlib import suppress
from functools import lru_cache
from typing import Any

RUN_ID = "TORCHELASTIC_RUN_ID"
"""torchrun, `accelerate launch` and `surefit train --processes N` set it for what they start."""
SAVE_SECONDS = 600
"""How long processes that were told to stop may take to finish their step and save it."""
POLL_SECONDS = 1.0


@lru_cache(maxsize=1)
def follow_launcher() -> None:
    """From now on, end with the launcher; a process without one is left alone."""
    launcher = find_launcher()
    if launcher is not None:
        thread = threading.Thread(target=_end_with, args=(launcher,), daemon=True)
        thread.start()


def find_launcher() -> Any:
    """The process that gave this one its number: the nearest that has no such number itself.

    None if there is none: the variables were set by hand, or it is outside of this container. There
    may be a shell in between, whose end means nothing.
    """
    import psutil

    run = os.environ.get(RUN_ID)
    if run is None:
        return None
    with suppress(psutil.Error, OSError):
        for each in psutil.Process().parents():
            if each.pid > 1 and each.environ().get(RUN_ID) != run:
                return each
    return None


def _end_with(launcher: Any) -> None:
    _wait_for_end(launcher)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        text = f"\nThe launcher (process {launcher.pid}) has ended, and the run ends with it.\n"
        with suppress(OSError):
            os.write(2, text.encode())
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SAVE_SECONDS)
    os._exit(1)


def _wait_for_end(process: Any) -> None:
    """Return when another process has ended, whether or not its own parent has noticed."""
    import psutil

    with suppress(AttributeError, OSError):  # Linux only; all processes hear of it at once
        descriptor = os.pidfd_open(process.pid)
        if process.is_running():  # and not another one that has its number now
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll()
        os.close(descriptor)
        return
    with suppress(psutil.Error):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(POLL_SECONDS)
