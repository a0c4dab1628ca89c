"""Mixed precision on meta tensors, which torch's autocast passes over: the same casts by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.nn import functional

_IN_HALF = (
    (functional, "linear"),
    (functional, "conv1d"),
    (functional, "conv2d"),
    (functional, "scaled_dot_product_attention"),
    (torch, "matmul"),
    (torch.Tensor, "matmul"),
    (torch.Tensor, "__matmul__"),
    (torch, "bmm"),
    (torch, "addmm"),
    (torch, "baddbmm"),
    (torch, "einsum"),
)
"""Products, which autocast computes in the narrow type."""

_IN_FULL = (
    (functional, "layer_norm"),
    (functional, "softmax"),
    (functional, "log_softmax"),
    (functional, "cross_entropy"),
)
"""Sums and exponentials, which it computes in float32; the rest follows its arguments."""


@contextmanager
def half_precision(dtype: torch.dtype | None) -> Iterator[None]:
    """While the block runs, products are computed in `dtype`; weights are cast once and kept."""
    if dtype is None:
        yield
        return
    narrow, before = _Caster(dtype), []
    for places, cast in ((_IN_HALF, narrow), (_IN_FULL, _Caster(torch.float32))):
        for owner, name in places:
            original = getattr(owner, name)
            before.append((owner, name, original))
            setattr(owner, name, _casting(original, cast))
    try:
        yield
    finally:
        for owner, name, original in reversed(before):
            setattr(owner, name, original)


class _Caster:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.kept: dict[int, torch.Tensor] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self(item) for item in value)
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if not isinstance(value, torch.nn.Parameter):
            return value.to(self.dtype)
        if id(value) not in self.kept:
            self.kept[id(value)] = value.to(self.dtype)
        return self.kept[id(value)]


def _casting(original: Callable[..., Any], cast: _Caster) -> Callable[..., Any]:
    @wraps(original)
    def casting(*args: Any, **kwargs: Any) -> Any:
        return original(*cast(args), **{key: cast(value) for key, value in kwargs.items()})

    return casting
