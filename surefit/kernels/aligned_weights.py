"""Weights aligned in memory: the last bit of a matrix product depends on where they are.

torch allocates at multiples of 64 bytes. A safetensors file puts a tensor at any multiple of 8,
and weights that are read from it stay there. Without alignment, a model that was saved and loaded
computes other last bits than the one that was trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

ALIGNMENT = 64


def align_weights(module: nn.Module) -> None:
    """Copy every weight and buffer on the CPU that is not aligned, in place; shared ones once."""
    from torch.nn.parameter import is_lazy

    copies: dict[tuple[Any, ...], Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        if is_lazy(tensor) or tensor.device.type != "cpu" or tensor.data_ptr() % ALIGNMENT == 0:
            continue
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in copies:
            copies[key] = tensor.data.clone()
        tensor.data = copies[key]
