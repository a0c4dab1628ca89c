"""`surefit train --processes N`: the command in several processes of this host, by torchrun."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil

from surefit.processes import (
    SAME_SIGNAL_SECONDS,
    check_devices,
    host_name,
    name_process,
    stop_signals,
)

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

EXIT_CODES = (1, 2, 130)
"""Exit codes of surefit."""


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
    )
    pass_on = _make_handler()
    before = {number: signal.signal(number, pass_on) for number in stop_signals()}
    try:
        elastic_launch(config, sys.executable)("-P", "-m", "surefit", *arguments)
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        if not os.path.isfile(first.error_file):  # it could not report its end itself
            _report_end(rank, first)
        raise SystemExit(first.exitcode if first.exitcode in EXIT_CODES else 1) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _make_handler() -> Any:
    """Return a handler that passes a signal on to the processes, once; SIGHUP ends them at once."""
    passed_at = -SAME_SIGNAL_SECONDS

    def pass_on(number: int, frame: Any) -> None:
        nonlocal passed_at
        now, before = time.monotonic(), passed_at
        passed_at = now
        if now - before < SAME_SIGNAL_SECONDS:
            return
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    return pass_on


def _report_end(rank: int, failure: ProcessFailure) -> None:
    ended = f"ended with exit code {failure.exitcode}"
    if failure.exitcode < 0:
        ended = f"was ended by {failure.signal_name()}"
    print(f"error: {name_process(rank, host_name())} {ended}.", file=sys.stderr)
    print("fix: If the run had begun, resume it with surefit train --resume RUN.", file=sys.stderr)
