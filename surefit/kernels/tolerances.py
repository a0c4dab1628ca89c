"""How far equal results may differ, by precision: kernels sum in other orders.

Every equality probe and every comparison of `compare_operations.py` reads this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


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
    """The tolerance of the lowest precision among tensors or dtypes.

    >>> import torch
    >>> tolerance_of(torch.zeros(1), torch.bfloat16).values
    0.03
    """
    names = [str(getattr(each, "dtype", each)).removeprefix("torch.") for each in results]
    known = [name for name in names if name in TOLERANCES] or ["float32"]
    return max((TOLERANCES[name] for name in known), key=lambda each: each.values)
