"""Deterministic algorithms, alignment, tolerances, differences of tensors, random state."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from surefit.core.float64 import to_float64


def prepare_deterministic(wanted: bool) -> None:
    """Let cuBLAS compute deterministically; torch reads this once, at the first matrix product."""
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Let torch compute deterministically while the block runs, if wanted."""
    prepare_deterministic(wanted)
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(wanted or before, warn_only=warns and not wanted)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


@dataclass(frozen=True)
class Tolerance:
    """Largest difference as a share of the largest value: of a loss, of outputs, of gradients."""

    loss: float
    values: float
    gradients: float


TOLERANCES = {
    "float64": Tolerance(loss=1e-5, values=1e-4, gradients=1e-4),
    "float32": Tolerance(loss=1e-5, values=1e-4, gradients=1e-4),
    "float16": Tolerance(loss=2e-3, values=1e-2, gradients=2e-2),
    "bfloat16": Tolerance(loss=1e-2, values=3e-2, gradients=5e-2),
}
"""By the lowest precision that either result was computed in. float64 is as wide as float32
because models have float32 inside. One rounding is 1e-3 in float16 and 8e-3 in bfloat16."""


def tolerance_of(*results: torch.Tensor | torch.dtype) -> Tolerance:
    """Return the tolerance of the lowest precision among tensors or dtypes.

    >>> import torch
    >>> tolerance_of(torch.zeros(1), torch.bfloat16).values
    0.03
    """
    names = [str(getattr(each, "dtype", each)).removeprefix("torch.") for each in results]
    known = [name for name in names if name in TOLERANCES] or ["float32"]
    return max((TOLERANCES[name] for name in known), key=lambda each: each.values)


AT_ONCE = 2**20
"""Values per slice."""


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> tuple[float, float, float]:
    """Return largest absolute difference, and the largest absolute value of each; NaN stays NaN."""
    parts = [torch.split(each.detach().reshape(-1), AT_ONCE) for each in (one, other)]
    pairs = ((to_float64(a), to_float64(b)) for a, b in zip(*parts, strict=True))
    found = [torch.stack([(a - b).abs().max(), a.abs().max(), b.abs().max()]) for a, b in pairs]
    difference, *sizes = torch.stack(found).amax(0).tolist()
    return difference, sizes[0], sizes[1]


def relative_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference as a share of the largest expected value; infinite for NaN."""
    if found.numel() == 0:
        return 0.0
    difference, _, size = largest_difference(found, expected)
    return difference / max(size, 1e-12) if math.isfinite(difference) else math.inf


@contextmanager
def preserved_state(module: nn.Module) -> Iterator[None]:
    """Evaluation mode with gradients; restores random state, mode and buffers afterwards."""
    training = {part: part.training for part in module.modules()}
    buffers = {n: value.clone() for n, value in module.named_buffers() if not is_lazy(value)}
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


ALIGNMENT = 64


def align_weights(module: nn.Module) -> None:
    """Copy every weight and buffer on the CPU that is not aligned, in place; shared ones once.

    The last bit of a matrix product depends on where its operands are. torch allocates at multiples
    of 64 bytes, a safetensors file puts a tensor at any multiple of 8, and weights that are read
    from it stay there: a model that was saved and loaded would compute other last bits.
    """
    copies: dict[tuple[Any, ...], Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        if is_lazy(tensor) or tensor.device.type != "cpu" or tensor.data_ptr() % ALIGNMENT == 0:
            continue
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in copies:
            copies[key] = tensor.data.clone()
        tensor.data = copies[key]
