"""Another process of the run ended, which the others notice by its closed connection."""

from __future__ import annotations

from surefit.errors import RunFailedError
from surefit.peers.closed_connection import is_closed_connection
from surefit.processes import describe_missing, num_processes
from surefit.run.run_folder import Run


def is_lost_process(error: BaseException, processes: int | None = None) -> bool:
    """Whether an error means that another process ended or does not answer.

    >>> is_lost_process(RuntimeError("pair.cc:553 Connection closed by peer [10.0.0.2]:341"), 1)
    False
    """
    several = (num_processes() if processes is None else processes) > 1
    return several and is_closed_connection(error)


def lost_process(run: Run, step: int) -> RunFailedError:
    """The error about a process that is gone."""
    missing = describe_missing()
    return RunFailedError(
        f"Another process ended or does not answer any more, so the run ended after step {step}"
        f"{f' ({missing})' if missing else ''}; that process has printed what ended it, unless it "
        "was killed.",
        f"When it is mended, go on from the latest checkpoint: surefit train --resume {run.path}.",
    )
