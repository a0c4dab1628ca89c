"""`surefit train --processes N`: the command in several processes of this host, by torchrun."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil

from surefit.peers.gone_launcher import SAVE_SECONDS
from surefit.peers.process_names import name_process
from surefit.processes import check_devices

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TOLD_CODES = (1, 2, 130)
"""Exit codes of surefit, which prints a message with them."""
SAME_SIGNAL_SECONDS = 0.5
"""Shells and `timeout` send a signal to a process and to its group."""
_passed_at = -math.inf


def launch(processes: int, arguments: list[str]) -> None:
    """Run `surefit` with these arguments in so many processes; exits if one fails."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    check_devices(processes)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (cores or 1) // processes)))
    logging.disable(logging.CRITICAL)  # torchrun's; this process does nothing else
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # a port that is free
        max_restarts=0,
        signals_to_handle="SIGQUIT",  # the others are passed on, so that the run is saved
        shutdown_timeout=SAVE_SECONDS,
    )
    heard = [n for n in SIGNALS if signal.getsignal(n) != signal.SIG_IGN]  # nohup ignores SIGHUP
    passed_on = {number: signal.signal(number, _pass_on) for number in heard}
    try:
        elastic_launch(config, sys.executable)("-m", "surefit", *arguments)
    except ChildFailedError as error:
        raise SystemExit(_explain_end(*error.get_first_failure())) from None
    finally:
        for number, handler in passed_on.items():
            signal.signal(number, handler)


def _pass_on(number: int, frame: Any) -> None:
    """Send a signal to the processes, once; a second one within a moment is the same one.

    SIGHUP would end them at once, so that they get SIGTERM.
    """
    global _passed_at
    now, before = time.monotonic(), _passed_at
    _passed_at = now
    if now - before < SAME_SIGNAL_SECONDS:
        return
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)


def _explain_end(rank: int, failure: ProcessFailure) -> int:
    """The exit code of a launch that failed; names the first that failed if it said nothing."""
    if failure.exitcode in TOLD_CODES:
        return failure.exitcode
    ended = f"ended with exit code {failure.exitcode}"
    if failure.exitcode < 0:
        ended = f"was ended by {failure.signal_name()}"
    print(f"error: {name_process(rank)} {ended}.", file=sys.stderr)
    print("fix: If the run had begun, go on with surefit train --resume RUN.", file=sys.stderr)
    return 1


def without_processes(arguments: list[str]) -> list[str]:
    """The arguments without `--processes N`.

    >>> without_processes(["train", "--processes", "2", "--data", "x", "--processes=4"])
    ['train', '--data', 'x']
    """
    left, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == "--processes":
            skip = True
        elif not argument.startswith("--processes="):
            left.append(argument)
    return left
