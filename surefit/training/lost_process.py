"""Another process of the run ended, which the others notice by its closed connection."""

from __future__ import annotations

import re

from surefit.errors import RunFailedError, message_of
from surefit.processes import num_processes
from surefit.run.run_folder import Run

_CLOSED = re.compile(
    r"Connection (?:closed|reset) by peer|Broken pipe|remote process exited|Socket closed"
    r"|Timed out waiting \d+ms|recvValue failed|NCCL.*(?:timeout|aborted)",
    re.IGNORECASE | re.DOTALL,
)
"""What gloo, NCCL and torch's store say when a process or its host does not answer any more."""


def is_lost_process(error: BaseException, processes: int | None = None) -> bool:
    """Whether an error means that another process ended or does not answer.

    >>> is_lost_process(RuntimeError("pair.cc:553 Connection closed by peer [10.0.0.2]:341"), 2)
    True
    >>> is_lost_process(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), 2)
    False
    """
    several = (num_processes() if processes is None else processes) > 1
    of_torch = isinstance(error, RuntimeError)  # DistBackendError is one, too
    return several and of_torch and _CLOSED.search(message_of(error)) is not None


def lost_process(run: Run, step: int) -> RunFailedError:
    """The error about a process that is gone; that one has printed its own."""
    return RunFailedError(
        f"Another process ended or does not answer any more, so the run ended after step {step}; "
        "what ended that process, it has printed itself.",
        f"When it is mended, go on from the latest checkpoint: surefit train --resume {run.path}.",
    )
