"""How many processes take part, and the order in which they do things that touch the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def num_processes() -> int:
    """Processes that train together; `accelerate launch` and `torchrun` say so."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_index() -> int:
    """This process's number among them."""
    return int(os.environ.get("RANK", "0"))


def is_main() -> bool:
    """Whether this process writes the run and speaks to the user."""
    return process_index() == 0


def on_cpu() -> bool:
    """Whether several processes must meet on the CPU; Accelerate needs the flag."""
    import torch

    return num_processes() > 1 and not torch.accelerator.is_available()


@contextmanager
def main_first() -> Iterator[None]:
    """The first process runs the block alone; the others follow, whether it went well or not."""
    if num_processes() == 1:
        yield
        return
    from accelerate import PartialState

    state = PartialState(cpu=on_cpu())
    if not is_main():
        state.wait_for_everyone()
    try:
        yield
    finally:
        if is_main():
            state.wait_for_everyone()
