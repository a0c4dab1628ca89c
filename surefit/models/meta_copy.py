"""A copy of a model on the meta device, for traces."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from surefit.models.call import Call
from surefit.models.quantize import quantized_on_meta

if TYPE_CHECKING:
    from torch import nn


def meta_copy(module: nn.Module, call: Call) -> tuple[nn.Module, Call]:
    """A copy of the model on the meta device, and its Call.

    Integer buffers keep their values, on the CPU: models branch on them.
    """
    import torch

    known: dict[int, Any] = {}
    weight: Any
    for weight in module.parameters():
        if getattr(weight, "quant_state", None) is not None:
            made, state = quantized_on_meta(weight)
            known |= {id(weight): made, id(weight.quant_state): state}
            continue
        empty = torch.empty_like(weight, device="meta")
        known[id(weight)] = torch.nn.Parameter(empty, requires_grad=weight.requires_grad)
    for buffer in module.buffers():
        if buffer.is_floating_point() and not buffer.is_meta:
            known[id(buffer)] = torch.empty_like(buffer, device="meta")
        else:
            known[id(buffer)] = buffer if buffer.is_meta else buffer.clone().cpu()
    copied: tuple[nn.Module, Call] = copy.deepcopy((module, call), known)
    return copied
