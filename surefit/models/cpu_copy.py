"""A copy of a model on the CPU, which needs no memory of the device that the model is on."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def cpu_copy(module: nn.Module) -> nn.Module:
    """A copy of the module whose weights and buffers are on the CPU."""
    import torch

    known: dict[int, Any] = {}
    for weight in module.parameters():
        if weight.device.type != "cpu":
            moved = weight.detach().cpu()
            known[id(weight)] = torch.nn.Parameter(moved, requires_grad=weight.requires_grad)
    for buffer in module.buffers():
        if buffer.device.type != "cpu":
            known[id(buffer)] = buffer.detach().cpu()
    return copy.deepcopy(module, known)
