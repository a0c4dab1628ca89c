"""A copy of a model on the meta device, for traces."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from surefit.models.call import Call

if TYPE_CHECKING:
    from torch import nn


def meta_copy(module: nn.Module, call: Call) -> tuple[nn.Module, Call]:
    """A copy of the model on the meta device, and its Call; integer buffers keep their values."""
    import torch

    known: dict[int, Any] = {}
    for weight in module.parameters():
        empty = torch.empty_like(weight, device="meta")
        known[id(weight)] = torch.nn.Parameter(empty, requires_grad=weight.requires_grad)
    for buffer in module.buffers():
        floating = buffer.is_floating_point() and not buffer.is_meta
        known[id(buffer)] = torch.empty_like(buffer, device="meta") if floating else buffer
    copied: tuple[nn.Module, Call] = copy.deepcopy((module, call), known)
    return copied
