"""Holds the frozen matrices of a LoRA model in the lower precision of mixed precision.

Autocast casts each weight to the lower precision where it is multiplied by. A weight that is
trained needs its float32 values; a frozen one does not: cast once, it gives the same products to
the bit, takes 2 bytes instead of 4, and no copies of it are kept for the backward pass. Only
matrices of plain linear layers are cast. Embeddings (also where the head is tied to them) and norms
stay in float32, because autocast does not cast them either.

Adapters, saved models and merged ones keep the precision that they had: only the memory of the
process that trains changes. Therefore the base model must be one that is found by its name again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from surefit.models.lora import (
    ADAPTER,
    adapted_part,
    adapter_config,
    is_adapted,
    trainable_names,
)
from surefit.models.lora_files import base_fingerprint, base_name
from surefit.models.lora_targets import find_matrices
from surefit.models.model_source import ModelSource
from surefit.speed.fused_lora import fuse_adapters


def may_lower(module: nn.Module, source: ModelSource) -> bool:
    """Whether the frozen matrices of a model may be cast: its base is read from its own files."""
    if not is_adapted(module) or base_name(source) is None:
        return False
    config = adapter_config(adapted_part(module))  # DoRA reads the values of frozen weights
    return not config.use_dora and bool(frozen_matrices(module))


def lower_frozen(module: nn.Module, dtype: torch.dtype | None) -> None:
    """Cast the frozen matrices of an adapted model to `dtype`, in place; None leaves them."""
    if dtype is None:
        return
    part: Any = adapted_part(module)
    frozen = [p for p in frozen_matrices(module) if p.dtype == torch.float32]
    if frozen and not frozen[0].is_meta:
        part.base_digest = base_fingerprint(module)  # of the values in the files
    for parameter in frozen:
        parameter.data = parameter.data.to(dtype)


@contextmanager
def frozen_as_trained(module: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """While the block runs, an adapted model holds and computes its frozen matrices as trained."""
    if dtype is None or not is_adapted(module):
        yield
        return
    part: Any = adapted_part(module)
    fuse_adapters(part, ADAPTER)
    before = [(parameter, parameter.data) for parameter in frozen_matrices(module)]
    lower_frozen(module, dtype)
    try:
        yield
    finally:
        for parameter, values in before:
            parameter.data = values.to(parameter.device)


def frozen_matrices(module: nn.Module) -> list[nn.Parameter]:
    """Weights and biases of plain linear layers that are not trained."""
    meant = trainable_names(module)
    trained = {id(p) for name, p in module.named_parameters() if p.requires_grad or name in meant}
    found = []
    for layer in find_matrices(adapted_part(module)):
        own = [*layer.parameters(recurse=False)]
        if trained.isdisjoint(map(id, own)):
            found += [parameter for parameter in own if parameter.is_floating_point()]
    return found
