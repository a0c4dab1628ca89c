"""What training changes in a module: trained weights, and the buffers that its state has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


def saved_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers in the state of a module; not what layers add to it, as quantized ones do."""
    state = module.state_dict(keep_vars=True)
    buffers = module.named_buffers(remove_duplicate=False)
    return {name: buffer for name, buffer in buffers if name in state}


def trained_tensors(module: nn.Module) -> dict[str, Any]:
    """The weights that are trained, and the buffers: the module's own tensors."""
    weights = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return {**weights, **saved_buffers(module)}
