"""A divided model as one whole module on process 0, whose weights are mapped from the disk.

Tensors are gathered one by one, so that a process holds its shares and one whole tensor at a time.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.models.call import Call
from surefit.models.meta_copy import meta_copy
from surefit.models.sharded_tensors import gather_whole, unique_tensors
from surefit.processes import is_main, together

if TYPE_CHECKING:
    from torch import nn


class Skeleton:
    """A module as it was before it was divided, without values: a divided one cannot be copied."""

    def __init__(self, module: nn.Module) -> None:
        self.module, _ = meta_copy(module, Call({}))

    def gather(self, module: nn.Module, folder: Path) -> nn.Module:
        """The whole module; all processes call it, and get it with the values on process 0 only.

        The values are in files that have no name: they take space in `folder` until they are freed.
        """
        for tensor, names in unique_tensors(module).values():
            whole = gather_whole(tensor.detach())
            with together("gathering the model"):
                if is_main():
                    _assign(self.module, names, _on_disk(whole, folder).copy_(whole))
            del whole
        if is_main():
            self._take_buffers(module)
        return self.module

    def allocate(self, module: nn.Module, folder: Path) -> nn.Module:
        """The whole module with empty weights, to be read from a checkpoint by one process alone.

        The values are kept as by `gather`.
        """
        for tensor, names in unique_tensors(self.module).values():
            if tensor.is_meta:
                _assign(self.module, names, _on_disk(tensor, folder))
        self._take_buffers(module)
        return self.module

    def _take_buffers(self, module: nn.Module) -> None:
        """Buffers are whole in each process; some are in no state."""
        for name, buffer in module.named_buffers():
            _assign(self.module, (name,), buffer)


def _on_disk(tensor: Any, folder: Path) -> Any:
    """An empty tensor of this kind in a file, so that the system may free the memory it takes."""
    import torch

    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    path = folder / f".gathered.{uuid.uuid4().hex[:8]}.tmp"
    try:
        _reserve(path, tensor.numel() * tensor.element_size())
        mapped: Any = torch.from_file(str(path), True, tensor.numel(), dtype=tensor.dtype)
    finally:
        path.unlink(missing_ok=True)  # it stays mapped; a killed process leaves nothing
    return mapped.view(tensor.shape)


def _reserve(path: Path, num_bytes: int) -> None:
    """Make a file of this size; a full disk is an error here, and a signal when it is mapped."""
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        else:
            file.truncate(num_bytes)


def _assign(module: nn.Module, names: Sequence[str], value: Any) -> None:
    """Put one tensor in all of its places."""
    from torch import nn

    parameter: nn.Parameter | None = None
    for name in names:
        place, _, last = name.rpartition(".")
        owner = module.get_submodule(place)
        if last in owner._buffers:
            owner._buffers[last] = value
            continue
        had = owner._parameters[last]
        assert had is not None
        parameter = nn.Parameter(value, had.requires_grad) if parameter is None else parameter
        owner._parameters[last] = parameter
