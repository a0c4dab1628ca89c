"""Activation checkpointing: what a layer made is thrown away and made again in the backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from surefit.findings import rule

if TYPE_CHECKING:
    from torch import nn

CANNOT_CHECKPOINT = rule(
    "SF404",
    "error",
    "checkpointing is not possible",
    why="Activations are made again layer by layer, which transformers' models are built for.",
    fix="Leave checkpointing out.",
)


def supports_checkpointing(module: nn.Module) -> bool:
    """Whether any part of the model is one of transformers' that can, and does not yet."""
    return any(not part.is_gradient_checkpointing for part in _parts(module))


def is_checkpointing(module: nn.Module) -> bool:
    """Whether any part of the model throws its activations away."""
    return any(part.is_gradient_checkpointing for part in _parts(module))


def enable_checkpointing(module: nn.Module) -> None:
    """Let each part that can do so throw its activations away; raises where none can."""
    parts = _parts(module)
    if not parts:
        raise CANNOT_CHECKPOINT.error(
            f"checkpointing is true, and {type(module).__name__} has no layers that can do it.",
        )
    for part in parts:
        part.gradient_checkpointing_enable({"use_reentrant": False})


def _parts(module: nn.Module) -> list[Any]:
    """The outermost models of transformers inside a module."""
    if getattr(module, "supports_gradient_checkpointing", False):
        return [module]
    return [part for child in module.children() for part in _parts(child)]
