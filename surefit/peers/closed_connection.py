"""What gloo, NCCL and torch's store say when another process does not answer any more."""

from __future__ import annotations

import re

from surefit.errors import message_of

_CLOSED = re.compile(
    r"Connection (?:closed|reset) by peer|Broken pipe|remote process exited|Socket closed"
    r"|Timed out waiting \d+ms|recvValue failed|failed to recv|NCCL.*(?:timeout|aborted)",
    re.IGNORECASE | re.DOTALL,
)


def is_closed_connection(error: BaseException) -> bool:
    """Whether an error means that another process ended or does not answer.

    >>> is_closed_connection(RuntimeError("pair.cc:553 Connection closed by peer [10.0.0.2]:341"))
    True
    >>> is_closed_connection(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    False
    """
    of_torch = isinstance(error, RuntimeError)  # DistBackendError is one, too
    return of_torch and _CLOSED.search(message_of(error)) is not None
