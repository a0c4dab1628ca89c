"""Gradient checkpointing: recompute activations in the backward pass to save memory."""

from __future__ import annotations

from typing import Any

from torch import nn

from surefit.findings import rule

CANNOT_CHECKPOINT = rule(
    "SF404",
    "error",
    "gradient checkpointing not supported",
    why="Only transformers models support recomputing activations layer by layer.",
    fix="Leave out checkpointing.",
)


def supports_checkpointing(module: nn.Module) -> bool:
    """Whether gradient checkpointing can still be enabled in a part of the model."""
    return any(not part.is_gradient_checkpointing for part in _parts(module))


def is_checkpointing(module: nn.Module) -> bool:
    """Whether any part of the model uses gradient checkpointing."""
    return any(part.is_gradient_checkpointing for part in _parts(module))


def enable_checkpointing(module: nn.Module) -> None:
    """Enable gradient checkpointing in each part that supports it; raises where none does."""
    parts = _parts(module)
    if not parts:
        raise CANNOT_CHECKPOINT.error(
            f"checkpointing is true, but {type(module).__name__} does not support it.",
        )
    for part in parts:
        part.gradient_checkpointing_enable({"use_reentrant": False})


def _parts(module: nn.Module) -> list[Any]:
    """The outermost submodules that support gradient checkpointing."""
    if getattr(module, "supports_gradient_checkpointing", False):
        return [module]
    return [part for child in module.children() for part in _parts(child)]
