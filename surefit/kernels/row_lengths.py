"""The lengths of concatenated rows, which stay on the host and take the place of a mask.

transformers passes an int64 mask with four axes on to the attention function unchanged. Reading
its values from a device would make the host wait in every layer, so it carries them as Python
numbers, and nothing moves it to a device (DDP would).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Rows:
    """Lengths of the rows in a batch; `steps` are the places of tokens where rows have gaps."""

    lengths: tuple[int, ...]
    steps: tuple[int, ...] | None = None
    _bounds: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def bounds(self, device: Any) -> torch.Tensor:
        """Where each row starts, and where the last one ends; made once per batch and device."""
        import torch

        if device not in self._bounds:
            ends = torch.tensor((0, *self.lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
            pins = torch.device(device).type == "cuda"
            self._bounds[device] = (ends.pin_memory() if pins else ends).to(
                device, non_blocking=pins
            )
        made: torch.Tensor = self._bounds[device]
        return made


def row_lengths_mask(lengths: Sequence[int], steps: Sequence[int] | None = None) -> torch.Tensor:
    """The row lengths in place of an attention mask.

    >>> read_rows(row_lengths_mask([3, 2])).lengths
    (3, 2)
    """
    import torch

    own = tuple(lengths), None if steps is None else tuple(steps)
    if steps is None:
        mask = torch.tensor(own[0], dtype=torch.int64).view(1, 1, 1, -1)
    else:
        mask = torch.zeros((1, 1, 2, max(len(lengths), len(steps))), dtype=torch.int64)
        mask[0, 0, 0, : len(lengths)] = torch.tensor(lengths)
        mask[0, 0, 1, : len(steps)] = torch.tensor(steps)
    made: torch.Tensor = mask.as_subclass(_host_mask())
    made.rows = Rows(tuple(n for n in own[0] if n), own[1])  # type: ignore[attr-defined]
    return made


def read_rows(mask: torch.Tensor) -> Rows:
    """The rows that a mask stands for; a copy of it that lost them is read."""
    known: Rows | None = getattr(mask, "rows", None)
    if known is not None:
        return known
    lengths = tuple(length for length in mask[0, 0, 0].tolist() if length)
    steps = tuple(mask[0, 0, 1].tolist()) if mask.shape[2] == 2 else None
    return Rows(lengths, steps if steps is None else steps[: sum(lengths)])


@lru_cache(maxsize=1)
def _host_mask() -> Any:
    """The tensor class, defined on first use because importing torch takes a second."""
    import torch

    class HostMask(torch.Tensor):
        """An int64 tensor that stays on the CPU; results of operations are plain tensors."""

        rows: Rows
        __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

        def to(self, *args: Any, **kwargs: Any) -> Any:
            return self

        def cuda(self, *args: Any, **kwargs: Any) -> Any:
            return self

        def record_stream(self, stream: Any) -> None:
            """Nothing on the device holds it."""

    return HostMask
