"""Sums of many numbers in float64, which some devices do not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def to_float64(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in float64; on the CPU, where its device (MPS) has no float64."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()
