"""Gradient clipping by norm, without a pass of its own over the gradients where there is a way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn


def make_clipper(
    accelerator: Accelerator, optimizer: Any, parameters: Sequence[nn.Parameter], clip: float
) -> Callable[[], None]:
    """What sees to it that the optimizer's next step uses gradients of norm `clip` at most.

    A fused optimizer divides gradients by its `grad_scale` as it reads them, which is how loss
    scaling works; without loss scaling that place is free. Sharded weights, loss scaling, other
    optimizers and doubles (the scale is a single) are left to Accelerate.
    """
    import torch

    if not clip:
        return lambda: None
    shards = accelerator.distributed_type.value not in ("NO", "MULTI_CPU", "MULTI_GPU")
    doubles = any(parameter.dtype == torch.float64 for parameter in parameters)
    if shards or doubles or accelerator.scaler is not None or not _divides(optimizer):
        return partial(accelerator.clip_grad_norm_, parameters, clip)

    def divide() -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        optimizer.grad_scale = (norm.float() / clip).clamp_(min=1.0)

    return divide


def _divides(optimizer: Any) -> bool:
    """Whether every group of an optimizer of torch is updated by a fused kernel."""
    return (
        getattr(optimizer, "_step_supports_amp_scaling", False)
        and type(optimizer).__module__.startswith("torch.optim")
        and all(group.get("fused") for group in optimizer.param_groups)
    )
