"""Processes and hosts as messages name them."""

from __future__ import annotations

import socket
from collections.abc import Sequence


def name_process(rank: int, host: str = "") -> str:
    """A process as messages name it.

    >>> name_process(3, "node-7")
    'Process 3 of host node-7'
    """
    return f"Process {rank} of host {host}" if host else f"Process {rank}"


def name_ranks(ranks: Sequence[int]) -> str:
    """Several processes by number, neighbours together.

    >>> name_ranks([1]), name_ranks([0, 4, 5, 6, 9])
    ('process 1', 'processes 0, 4-6, 9')
    """
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    shown = [str(one[0]) if len(one) == 1 else f"{one[0]}-{one[-1]}" for one in parts]
    return f"process{'es' if len(ranks) > 1 else ''} {', '.join(shown)}"


def host_name() -> str:
    """The name of this host."""
    return socket.gethostname()
