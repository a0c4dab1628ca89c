"""The processes that train together: how many, who goes first, and what they tell each other.

What they tell each other goes through a group of its own on the CPU (gloo), whatever the gradients
use: it waits as long as the first process needs to encode the data, and ends at once when a process
dies.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

from surefit.errors import SurefitError, describe_error

Value = TypeVar("Value")
WAIT = timedelta(days=2)
"""How long processes wait for one that encodes data; one that dies ends the wait."""


def num_processes() -> int:
    """Processes that train together; `accelerate launch` and `torchrun` say so."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_index() -> int:
    """This process's number among them."""
    return int(os.environ.get("RANK", "0"))


def num_on_host() -> int:
    """Processes that train together on this host."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def is_main() -> bool:
    """Whether this process writes the run and speaks to the user."""
    return process_index() == 0


def is_first_on_host() -> bool:
    """Whether this process encodes the data for the others of its host."""
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


def on_cpu() -> bool:
    """Whether several processes must meet on the CPU; Accelerate needs the flag."""
    import torch

    return num_processes() > 1 and not torch.accelerator.is_available()


def gather(value: Value) -> list[Value]:
    """The values of all processes, in their order; all of them must call it."""
    if num_processes() == 1:
        return [value]
    from torch import distributed

    group, values = _talk(), [value] * num_processes()
    distributed.all_gather_object(values, value, group=group)
    return values


def _talk() -> Any:
    """The group that processes talk through; made anew if the one before was closed."""
    from torch import distributed

    if not distributed.is_initialized():
        _make_group.cache_clear()
    return _make_group()


@lru_cache(maxsize=1)
def _make_group() -> Any:
    from accelerate import PartialState
    from torch import distributed

    PartialState(cpu=on_cpu())
    return distributed.new_group(backend="gloo", timeout=WAIT)


@contextmanager
def main_first() -> Iterator[None]:
    """The first process runs the block alone; the others follow, whether it went well or not."""
    if not is_main():
        gather(None)
    try:
        yield
    finally:
        if is_main():
            gather(None)


class OtherProcessError(SurefitError):
    """Another process could not go on, so that this one cannot either."""

    is_told = True

    def __init__(self, message: str, fix: str, exit_code: int) -> None:
        super().__init__(message, fix)
        self.exit_code = exit_code


@contextmanager
def together(stage: str) -> Iterator[None]:
    """A block that all processes run: if it fails in one of them, it fails in all.

    Processes must not wait for each other inside the block.
    """
    failed: Exception | None = None
    try:
        yield
    except Exception as error:
        failed = error
    told = gather(None if failed is None else _tell(failed))
    if failed is not None:
        failed.is_told = True  # type: ignore[attr-defined]
        raise failed
    for rank, other in enumerate(told):
        if other is not None:
            message, fix, exit_code = other
            what = f"{name_process(rank)} failed while {stage}: {message}"
            raise OtherProcessError(what, fix, exit_code)


def name_process(rank: int, host: str = "") -> str:
    """A process as messages name it.

    >>> name_process(3, "node-7")
    'Process 3 of host node-7'
    """
    return f"Process {rank} of host {host}" if host else f"Process {rank}"


def host_name() -> str:
    """The name of this host."""
    return socket.gethostname()


def _tell(error: Exception) -> tuple[str, str, int]:
    if isinstance(error, SurefitError):
        return error.message, error.fix, error.exit_code
    return describe_error(error), "", 1
