"""The lower precision that mixed precision computes matrix products in, also on meta tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_traced: ContextVar[torch.dtype | None] = ContextVar("traced precision", default=None)


@contextmanager
def traced_precision(dtype: torch.dtype | None) -> Iterator[None]:
    """While the block runs, meta tensors are computed on as if autocast had this precision."""
    token = _traced.set(dtype)
    try:
        yield
    finally:
        _traced.reset(token)


def lower_precision(tensor: torch.Tensor) -> torch.dtype | None:
    """The precision that autocast would cast this tensor to; None where it casts nothing."""
    import torch

    if tensor.is_meta:
        return _traced.get()
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
