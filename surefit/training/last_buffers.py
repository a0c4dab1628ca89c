"""The buffers of a module as they were after the last finished step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from surefit.models.trained_tensors import saved_buffers
from surefit.processes import num_processes
from surefit.training.same_values import take_together

if TYPE_CHECKING:
    import torch
    from torch import nn


class LastBuffers:
    """Copies of what a forward pass changes and a checkpoint holds, such as batch norm statistics.

    A step that failed has changed them; the weights only change when the optimizer steps.
    """

    def __init__(self, module: nn.Module) -> None:
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = [
            (buffer, buffer.clone()) for buffer in saved_buffers(module).values()
        ]

    def keep(self) -> None:
        """Note that a step is finished; all processes take the buffers of the first."""
        if num_processes() > 1:
            take_together(buffer for buffer, _ in self._kept)
        for buffer, before in self._kept:
            before.copy_(buffer)

    def restore(self) -> None:
        """Put back what the last finished step left."""
        import torch

        with torch.no_grad():
            for buffer, before in self._kept:
                buffer.copy_(before)


@contextmanager
def unchanged_buffers(module: nn.Module) -> Iterator[None]:
    """After the block, the module's buffers are as before."""
    import torch

    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
