"""Mixed precision on meta tensors: the casts of `torch.autocast`, which ignores that device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch.nn import functional

from surefit.speed.numerics import traced_precision

_IN_LOWER_PRECISION = (
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
"""Matrix products and convolutions, which autocast computes in the lower precision."""

_IN_FLOAT32 = (
    (functional, "layer_norm"),
    (functional, "softmax"),
    (functional, "log_softmax"),
    (functional, "cross_entropy"),
)
"""Sums and exponentials, which autocast computes in float32. Other operations keep the dtype of
their arguments."""


@contextmanager
def meta_autocast(dtype: torch.dtype | None) -> Iterator[None]:
    """While the block runs, matrix products are computed in `dtype`; weights are cast once.

    A model's own `torch.autocast` for the device of its weights, which fails there, does nothing.
    """
    originals: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, changed: Any) -> None:
        originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, changed)

    put(torch, "autocast", _ignoring_meta(torch.autocast))
    if dtype is not None:
        casts = (_IN_LOWER_PRECISION, _Caster(dtype)), (_IN_FLOAT32, _Caster(torch.float32))
        for functions, cast in casts:
            for owner, name in functions:
                put(owner, name, _casting(getattr(owner, name), cast))
    try:
        with traced_precision(dtype):
            yield
    finally:
        for owner, name, original in reversed(originals):
            setattr(owner, name, original)


def _ignoring_meta(autocast: Any) -> Callable[..., Any]:
    def on_device(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return nullcontext() if device_type == "meta" else autocast(device_type, *args, **kwargs)

    return on_device


class _Caster:
    """Casts floating-point tensors to one dtype; a cast weight is cached, as autocast does it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.cast_weights: dict[int, torch.Tensor] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self(item) for item in value)
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if not isinstance(value, torch.nn.Parameter):
            return value.to(self.dtype)
        if id(value) not in self.cast_weights:
            self.cast_weights[id(value)] = value.to(self.dtype)
        return self.cast_weights[id(value)]


def _casting(original: Callable[..., Any], cast: _Caster) -> Callable[..., Any]:
    @wraps(original)
    def casting(*args: Any, **kwargs: Any) -> Any:
        return original(*cast(args), **{key: cast(value) for key, value in kwargs.items()})

    return casting
