"""Deterministic algorithms of torch, for runs that are repeated to the bit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def prepare_deterministic(wanted: bool) -> None:
    """Let cuBLAS compute deterministically; torch reads this once, at the first matrix product."""
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Let torch compute deterministically while the block runs, if wanted."""
    import torch

    prepare_deterministic(wanted)
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(wanted or before, warn_only=warns and not wanted)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
