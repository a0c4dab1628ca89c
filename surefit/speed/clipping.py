"""Gradient clipping by norm, fused into the optimizer step where the optimizer allows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from accelerate import Accelerator


def make_clipper(
    accelerator: Accelerator, optimizer: Any, parameters: Sequence[nn.Parameter], clip: float
) -> Callable[[], Any]:
    """Return a function to call before each optimizer step, which clips the gradients to norm
    `clip`.

    It returns their norm before that, as a tensor; None while gradients are scaled (fp16), where
    values that are not finite are usual and the scaler skips the step. 0 is for no clipping.

    A fused optimizer divides gradients by its `grad_scale` as it reads them; loss scaling uses
    this, and clipping can use it where there is no loss scaling. torch clips sharded weights (the
    norm is that of all shards), scaled losses, float64 weights (`grad_scale` is float32) and other
    optimizers.
    """
    if not clip:
        return lambda: None if accelerator.scaler is not None else _norm(parameters)
    shards = any(hasattr(parameter, "full_tensor") for parameter in parameters)
    doubles = any(parameter.dtype == torch.float64 for parameter in parameters)
    if shards or doubles or accelerator.scaler is not None or not _is_fused(optimizer):

        def clip_norm() -> Any:
            norm = _whole(accelerator.clip_grad_norm_(parameters, clip))
            return norm if accelerator.scaler is None else None

        return clip_norm

    def scale() -> Any:
        norm = _norm(parameters)
        optimizer.grad_scale = (norm.float() / clip).clamp_(min=1.0)
        return norm

    return scale


def _norm(parameters: Sequence[nn.Parameter]) -> Any:
    gradients = [p.grad for p in parameters if p.grad is not None]
    return _whole(torch.nn.utils.get_total_norm(gradients))


def _whole(norm: Any) -> Any:
    """Return the norm over all shards, where each process knows the part of its own."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def _is_fused(optimizer: Any) -> bool:
    """Return whether this is a torch optimizer with a fused kernel for every parameter group."""
    return (
        {p.device.type for group in optimizer.param_groups for p in group["params"]}
        <= {"cpu", "cuda"}  # other devices may ignore `grad_scale`
        and getattr(optimizer, "_step_supports_amp_scaling", False)
        and type(optimizer).__module__.startswith("torch.optim")
        and all(group.get("fused") for group in optimizer.param_groups)
    )
