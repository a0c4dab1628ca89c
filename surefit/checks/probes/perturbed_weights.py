"""A copy of an untrained model with larger weights, so that its outputs depend on every input.

Fresh weights are small: attention is nearly uniform, gates are nearly closed, and a fault in what a
position sees hardly changes the outputs. Noise on every weight makes such faults visible.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

VECTOR_NOISE = 0.1
"""Standard deviation of the noise on biases, norms and other vectors."""


@contextmanager
def perturbed_copy(module: nn.Module, call: Any) -> Iterator[tuple[Any, Any] | None]:
    """A perturbed copy of the module, and its Call; None where the module cannot be copied.

    The weights of the copy are freed at the end of the block.
    """
    try:
        copied, its_call = copy.deepcopy((module, call))
    except Exception:  # the module's own code may refuse in any way
        yield None
        return
    try:
        perturb(copied)
        yield copied, its_call
    finally:
        for weight in copied.parameters():  # cycles may keep the copy alive for long
            weight.data = weight.data.new_empty(0)


def perturb(module: nn.Module, seed: int = 0) -> None:
    """Add noise that keeps the size of activations: 1/√(inputs) per weight of a matrix."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in module.modules():
            for weight in part.parameters(recurse=False):
                if not weight.is_floating_point():
                    continue
                noise = torch.randn(weight.shape, generator=generator) * _noise_size(part, weight)
                weight.add_(noise.to(weight.device, weight.dtype))


def _noise_size(part: nn.Module, weight: torch.Tensor) -> float:
    from torch import nn

    if weight.ndim < 2:
        return VECTOR_NOISE
    convolution = isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    inputs = weight[0].numel() if convolution else weight.shape[-1]
    return 1.0 / math.sqrt(max(inputs, 1))
