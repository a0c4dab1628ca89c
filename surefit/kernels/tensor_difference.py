"""Compares two large tensors in slices, without full-size copies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from surefit.wide_numbers import as_double

if TYPE_CHECKING:
    import torch

AT_ONCE = 2**20
"""Values per slice."""


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> tuple[float, float, float]:
    """The largest absolute difference, and the largest absolute value of each; NaN stays NaN."""
    import torch

    parts = [torch.split(each.detach().reshape(-1), AT_ONCE) for each in (one, other)]
    pairs = ((as_double(a), as_double(b)) for a, b in zip(*parts, strict=True))
    found = [torch.stack([(a - b).abs().max(), a.abs().max(), b.abs().max()]) for a, b in pairs]
    difference, *sizes = torch.stack(found).amax(0).tolist()
    return difference, sizes[0], sizes[1]


def relative_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference as a share of the largest expected value; infinite for NaN."""
    if found.numel() == 0:
        return 0.0
    difference, _, size = largest_difference(found, expected)
    return difference / max(size, 1e-12) if math.isfinite(difference) else math.inf
