"""Gradient clipping by norm, fused into the optimizer step where the optimizer allows it."""

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
    """A function to call before each optimizer step, which clips the gradients to norm `clip`.

    A fused optimizer divides gradients by its `grad_scale` as it reads them; loss scaling uses
    this, and clipping can use it where there is no loss scaling. Accelerate clips sharded weights,
    scaled losses, float64 weights (`grad_scale` is float32) and other optimizers.
    """
    import torch

    if not clip:
        return lambda: None
    shards = accelerator.distributed_type.value not in ("NO", "MULTI_CPU", "MULTI_GPU")
    doubles = any(parameter.dtype == torch.float64 for parameter in parameters)
    if shards or doubles or accelerator.scaler is not None or not _is_fused(optimizer):
        return partial(accelerator.clip_grad_norm_, parameters, clip)

    def scale() -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        optimizer.grad_scale = (norm.float() / clip).clamp_(min=1.0)

    return scale


def _is_fused(optimizer: Any) -> bool:
    """Whether this is a torch optimizer with a fused kernel for every parameter group."""
    return (
        getattr(optimizer, "_step_supports_amp_scaling", False)
        and type(optimizer).__module__.startswith("torch.optim")
        and all(group.get("fused") for group in optimizer.param_groups)
    )
