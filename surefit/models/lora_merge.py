"""Merges LoRA adapters into the weights of a model, or removes them for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from surefit.models.lora import adapted_part

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def without_adapters(module: nn.Module) -> Iterator[None]:
    """Replace the adapted layers by their base layers inside the block."""
    swapped = list(_swap(module, _base_of))
    try:
        yield
    finally:
        for parent, name, layer in swapped:
            setattr(parent, name, layer)


def merge_adapters(module: nn.Module) -> nn.Module:
    """Merge the adapters into the weights and remove their layers, in place."""
    list(_swap(module, _merged))
    del adapted_part(module).peft_config
    return module


def _swap(
    module: nn.Module, replacement: Callable[[Any], nn.Module]
) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    kinds = (BaseTunerLayer, AuxiliaryTrainingWrapper)
    for parent in list(module.modules()):
        if isinstance(parent, kinds):
            continue
        for name, layer in list(parent.named_children()):
            if isinstance(layer, kinds):
                setattr(parent, name, replacement(layer))
                yield parent, name, layer


def _base_of(layer: Any) -> nn.Module:
    base: nn.Module = (
        layer.original_module if hasattr(layer, "original_module") else layer.get_base_layer()
    )
    return base


def _merged(layer: Any) -> nn.Module:
    if hasattr(layer, "unload_and_optionally_merge_module"):
        plain: nn.Module = layer.unload_and_optionally_merge_module(True, True, None)
        return plain
    layer.merge(safe_merge=True)
    base: nn.Module = layer.get_base_layer()
    return base
