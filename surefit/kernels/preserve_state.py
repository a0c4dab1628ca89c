"""Runs a model for a check and restores its mode, buffers and random state afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def preserved_state(module: nn.Module) -> Iterator[None]:
    """Evaluation mode with gradients; restores random state, mode and buffers afterwards."""
    import torch

    training = {part: part.training for part in module.modules()}
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    with torch.enable_grad(), torch.random.fork_rng():
        module.eval()
        try:
            yield
        finally:
            for part, mode in training.items():
                part.training = mode
            with torch.no_grad():
                for name, value in module.named_buffers():
                    if name in buffers and value.shape == buffers[name].shape:
                        value.copy_(buffers[name])
