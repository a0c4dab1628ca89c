"""Precisions: their names in the config, the dtypes they compute in, and what `auto` is.

In mixed precision (`bf16`, `fp16`) weights and optimizer state stay in float32, and matrix products
are computed in the lower precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

HALF = ("bf16", "fp16")
"""The precisions with a lower dtype."""


def resolve_precision(precision: str) -> str:
    """Return the precision that a run computes in on this machine.

    `auto` is bf16 on CUDA, fp16 on CUDA devices that only emulate bf16 (before Ampere), else fp32.
    """
    import torch

    if precision != "auto":
        return precision
    if not torch.cuda.is_available():
        return "fp32"
    return "fp16" if emulates_bf16() else "bf16"


def emulates_bf16() -> bool:
    """Return whether the CUDA device of this machine, if there is one, only emulates bf16."""
    import torch

    here = torch.cuda.is_available()
    return here and not torch.cuda.is_bf16_supported(including_emulation=False)


def lower_dtype(precision: str) -> torch.dtype | None:
    """Return the dtype of matrix products in mixed precision; None for float32.

    >>> lower_dtype("bf16"), lower_dtype("fp32")
    (torch.bfloat16, None)
    """
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


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
    """Return the precision that autocast would cast this tensor to; None where it casts nothing."""
    import torch

    if tensor.is_meta:
        return _traced.get()
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
