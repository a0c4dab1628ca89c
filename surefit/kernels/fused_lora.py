"""Fused LoRA: a frozen Linear and its adapter computed as one operation.

peft adds `B(A(x)) * scale` to the layer's output, which allocates three more tensors of the
output's size, and as many in the backward pass. Here the product is accumulated into the output,
in both passes. Parameters, names and files stay peft's; only `forward` is replaced.
"""

from __future__ import annotations

from functools import lru_cache
from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


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
    from torch import nn

    base = layer.get_base_layer()
    if type(base) is not nn.Linear or base.weight.requires_grad or layer.fan_in_fan_out:
        return False
    if list(layer.lora_A) != [adapter] or adapter in layer.lora_variant:
        return False
    a, b = layer.lora_A[adapter], layer.lora_B[adapter]
    same = a.weight.dtype == b.weight.dtype == base.weight.dtype
    return same and b.bias is None and isinstance(layer.lora_dropout[adapter], nn.Identity)


def _forward(self: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    import torch
    from peft.tuners.lora import Linear

    base, (name,) = self.base_layer, self.lora_A
    plain = not (args or kwargs or self.disable_adapters or self.merged)
    plain = plain and not base._forward_hooks and not base._forward_pre_hooks
    casts = not x.is_meta and torch.is_autocast_enabled(x.device.type)
    if not plain or casts or x.dtype != base.weight.dtype:
        found: torch.Tensor = Linear.forward(self, x, *args, **kwargs)
        return found
    a, b = self.lora_A[name].weight, self.lora_B[name].weight
    made: torch.Tensor = _operation().apply(x, base.weight, base.bias, a, b, self.scaling[name])
    return made


@lru_cache(maxsize=1)
def _operation() -> Any:
    """The autograd function, defined on first use because importing torch takes a second."""
    import torch
    from torch.autograd.function import once_differentiable

    class LowRankLinear(torch.autograd.Function):
        """`x W' + bias + scale (x A') B'`, with gradients for x, A and B."""

        @staticmethod
        def forward(
            ctx: Any, x: Any, weight: Any, bias: Any, a: Any, b: Any, scale: float
        ) -> torch.Tensor:
            rows = x.reshape(-1, x.shape[-1])
            low = rows @ a.T
            out = torch.nn.functional.linear(rows, weight, bias)
            out.addmm_(low, b.T, alpha=scale)
            out.resize_(*x.shape[:-1], len(weight))  # not a view: models may write into it
            ctx.save_for_backward(rows, low, weight, a, b)
            ctx.scale, ctx.shape = scale, x.shape
            return out

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
            rows, low, weight, a, b = ctx.saved_tensors
            out = gradient.reshape(-1, gradient.shape[-1])
            through = (out @ b).mul_(ctx.scale)
            back = None
            if ctx.needs_input_grad[0]:
                back = (out @ weight).addmm_(through, a).view(ctx.shape)
            return back, None, None, through.T @ rows, (out.T @ low).mul_(ctx.scale), None

    return LowRankLinear
