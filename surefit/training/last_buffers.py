"""The buffers of a module as they were after the last finished step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

from surefit.models.trained_tensors import saved_buffers
from surefit.processes import num_processes

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
            self._take_from_first()
        for buffer, before in self._kept:
            before.copy_(buffer)

    def _take_from_first(self) -> None:
        import torch
        from torch import distributed

        by_dtype = sorted((buffer for buffer, _ in self._kept), key=lambda each: str(each.dtype))
        for _, group in groupby(by_dtype, key=lambda each: each.dtype):
            buffers = list(group)
            together = torch.cat([buffer.reshape(-1) for buffer in buffers])
            distributed.broadcast(together, 0)
            parts = torch.split(together, [buffer.numel() for buffer in buffers])
            with torch.no_grad():
                for buffer, part in zip(buffers, parts, strict=True):
                    buffer.copy_(part.view_as(buffer))

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
