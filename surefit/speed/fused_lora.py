"""Fused LoRA: a frozen Linear and its adapter computed as one operation.

peft adds `B(A(x)) * scale` to the layer's output, which allocates three more tensors of the
output's size, and as many in the backward pass. Here the product is accumulated into the output,
in both passes. Parameters, names and files stay peft's; only `forward` is replaced.

In mixed precision the frozen weight must be in the lower precision already
(`models/lora.py`); the adapter, in float32, is cast.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from surefit.speed.precision import lower_precision


class LowRankLinear(torch.autograd.Function):
    """`x W' + bias + scale (x A') B'`, with gradients for x, A and B."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, weight: Any, bias: Any, a: Any, b: Any, scale: float
    ) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        low = rows @ a.to(x.dtype).T
        out = torch.nn.functional.linear(rows, weight, None if bias is None else bias.to(x.dtype))
        out.addmm_(low, b.to(x.dtype).T, alpha=scale)
        out.resize_(*x.shape[:-1], len(weight))  # not a view: models may write into it
        ctx.save_for_backward(rows, low, weight, a, b)
        ctx.scale, ctx.shape = scale, x.shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        rows, low, weight, a, b = ctx.saved_tensors
        out = gradient.reshape(-1, gradient.shape[-1])
        through = (out @ b.to(out.dtype)).mul_(ctx.scale)
        back = None
        if ctx.needs_input_grad[0]:
            back = (out @ weight).addmm_(through, a.to(out.dtype)).view(ctx.shape)
        of_a, of_b = through.T @ rows, (out.T @ low).mul_(ctx.scale)
        return back, None, None, of_a.to(a.dtype), of_b.to(b.dtype), None


def fuse_adapters(module: nn.Module, adapter: str) -> int:
    """Replace the forward of every plain LoRA layer, in place; returns how many were replaced."""
    from peft.tuners.lora import Linear

    fused = 0
    for layer in module.modules():
        if type(layer) is Linear and _is_plain(layer, adapter):
            layer.forward = MethodType(_forward, layer)
            fused += 1
    return fused


def _is_plain(layer: Any, adapter: str) -> bool:
    """Whether the layer is a frozen Linear with one adapter of two matrices and no dropout."""
    base = layer.get_base_layer()
    if type(base) is not nn.Linear or base.weight.requires_grad or layer.fan_in_fan_out:
        return False
    if list(layer.lora_A) != [adapter] or adapter in layer.lora_variant:
        return False
    a, b = layer.lora_A[adapter], layer.lora_B[adapter]
    same = a.weight.dtype == b.weight.dtype
    return same and b.bias is None and isinstance(layer.lora_dropout[adapter], nn.Identity)


def _forward(self: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    from peft.tuners.lora import Linear

    base, (name,) = self.base_layer, self.lora_A
    a, b = self.lora_A[name].weight, self.lora_B[name].weight
    low = lower_precision(x)
    plain = not (args or kwargs or self.disable_adapters or self.merged)
    plain = plain and not base._forward_hooks and not base._forward_pre_hooks
    plain = (
        plain and base.weight.dtype == (low or x.dtype) and (low is not None or a.dtype == x.dtype)
    )
    if not plain:
        found: torch.Tensor = Linear.forward(self, x, *args, **kwargs)
        return found
    x = x.to(base.weight.dtype)
    apply: Any = LowRankLinear.apply
    made: torch.Tensor = apply(x, base.weight, base.bias, a, b, self.scaling[name])
    return made
