"""A process of this machine that was killed: it told nobody, and NCCL does not notice it."""

from __future__ import annotations

import os
from pathlib import Path

from surefit.peers.process_names import host_name
from surefit.peers.told_failure import Failure

GONE_SECONDS = 5.0
"""How long a process waits in a collective for one that is gone; connections that close end it."""


def process_space() -> str:
    """Where process numbers mean the same: this machine since it was started, this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not on every system
        return host_name()


def is_gone(pid: int) -> bool:
    """Whether a process of this machine has ended, whether or not its parent has noticed."""
    import psutil

    try:
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, OSError):
        return False


def as_lost(rank: int, host: str, doing: str) -> Failure:
    """What the others are told for a process that could not do so."""
    line = f"it was killed, or has crashed, and could not tell why. It was last {doing}."
    return Failure(rank, host, (line,), "See what it has printed, or what has killed it.", 1, True)
