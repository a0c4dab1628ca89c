"""Runs functions in several processes with a gloo group of their own; used by sharding tests.

A script imports what is slow once and then forks: `run(3, function, folder)` calls the function in
three processes, which find their number as under torchrun.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any


def run(count: int, function: Callable[..., None], *args: Any) -> list[int]:
    """Call `function(*args)` in `count` forked processes; their exit codes (−9: killed)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [_fork(rank, count, port, function, args) for rank in range(count)]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _fork(
    rank: int, count: int, port: int, function: Callable[..., None], args: tuple[Any, ...]
) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    code = 1
    try:
        function(*args)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise AssertionError


def start_group(count: int) -> Any:
    """The mesh of this process's group; None for one process, which has none."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    from surefit.processes import gather

    torch.set_num_threads(1)
    if count == 1:
        return None
    gather(None)  # makes the group
    return init_device_mesh("cpu", (count,))
