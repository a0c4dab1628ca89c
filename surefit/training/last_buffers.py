"""The buffers of a module as they were after the last finished step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn


class LastBuffers:
    """Copies of what a forward pass changes and a checkpoint holds, such as batch norm statistics.

    A step that failed has changed them; the weights only change when the optimizer steps.
    """

    def __init__(self, module: nn.Module) -> None:
        weights = dict(module.named_parameters(remove_duplicate=False))
        saved = module.state_dict(keep_vars=True).items()
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = [
            (tensor, tensor.clone()) for name, tensor in saved if name not in weights
        ]

    def keep(self) -> None:
        """Note that a step is finished."""
        for buffer, before in self._kept:
            before.copy_(buffer)

    def restore(self) -> None:
        """Put back what the last finished step left."""
        import torch

        with torch.no_grad():
            for buffer, before in self._kept:
                buffer.copy_(before)
