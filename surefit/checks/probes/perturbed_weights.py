"""A copy of an untrained model with larger weights, so that its outputs depend on every input.

Fresh weights are small: attention is nearly uniform, gates are nearly closed, and a fault in what a
position sees hardly changes the outputs. Noise on every weight makes such faults visible.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from surefit.models.call import Call
from surefit.speed.numerics import preserved_state

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


TRIES = 4
"""How often noise is added, and then how often the weights are multiplied."""
GROWTH = 8.0
MAX_COPIED_WEIGHTS = 200_000_000
"""Larger modules are not copied to look at them."""

Batch = Mapping[str, Any]
Scores = Callable[[Any], "torch.Tensor"]


def stays_in_unit(
    module: nn.Module, call: Call, batch: Batch, scores: Scores, outputs: Any
) -> bool:
    """Whether the scores of the outputs are between 0 and 1, and for other weights, too."""
    if not _in_unit(scores(outputs)):
        return False
    if sum(weight.numel() for weight in module.parameters()) > MAX_COPIED_WEIGHTS:
        return False
    with perturbed_copy(module, call) as copied:
        if copied is None:
            return False
        for seed in range(1, TRIES + 1):
            if not _in_unit(_run(*copied, batch, scores)):
                return False
            perturb(copied[0], seed)  # on top of the noise before it
        found = _run(*copied, batch, scores)
        if found is None or not bool((found > 0).any()):  # as of a ReLU that is off
            return False
        for _ in range(TRIES):
            _multiply(copied[0], GROWTH)
            found = _run(*copied, batch, scores)
            if found is None or not bool(found.isfinite().all()):  # too large for the layers
                break
            if not _in_unit(found):
                return False
    return True


def _multiply(module: nn.Module, factor: float) -> None:
    import torch

    with torch.no_grad():
        for weight in module.parameters():
            if weight.is_floating_point():
                weight.mul_(factor)


def _in_unit(found: torch.Tensor | None) -> bool:
    return found is not None and bool(((found >= 0) & (found <= 1)).all())


def _run(module: Any, call: Any, batch: Batch, scores: Scores) -> torch.Tensor | None:
    import torch

    with preserved_state(module), torch.no_grad():
        try:
            return scores(call(module, batch))
        except Exception:  # with other weights, the module's own code may fail
            return None
