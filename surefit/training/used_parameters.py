"""Which parameters of a divided model got a gradient in a step, in any process.

FSDP sums zeros for a parameter that a process did not use. Without a gradient anywhere, it has none
in one process, and the optimizer leaves it alone: the same must hold in several.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from surefit.models.shard_module import is_sharded

if TYPE_CHECKING:
    from torch import nn


class UsedParameters:
    """Notes gradients of the gathered parameters, which exist while a unit is in use."""

    def __init__(self, module: nn.Module) -> None:
        self._shards = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self._used: set[str] = set()
        self._watched: set[int] = set()
        self._counts = True
        for name, part in module.named_modules():
            if is_sharded(part):
                part.register_forward_pre_hook(self._watch(f"{name}." if name else ""))

    def _watch(self, prefix: str) -> Any:
        """Watch the parameters of a unit once they are gathered, which FSDP does before this."""

        def watch(unit: nn.Module, _: Any) -> None:
            weights: list[tuple[str, Any]] = list(unit.named_parameters())
            for name, parameter in weights:
                is_new = id(parameter) not in self._watched and not hasattr(parameter, "to_local")
                if is_new and parameter.requires_grad:
                    self._watched.add(id(parameter))
                    parameter.register_post_accumulate_grad_hook(self._note(prefix + name))

        return watch

    def _note(self, name: str) -> Any:
        def note(_: Any) -> None:
            if self._counts:
                self._used.add(name)

        return note

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """A pass that counts nothing."""
        self._counts = False
        try:
            yield
        finally:
            self._counts = True

    def drop_others(self) -> None:
        """Drop the gradients that no process has computed; all call it after a step's passes."""
        import torch
        from torch import distributed

        device = next(iter(self._shards.values())).device
        used = torch.tensor([name in self._used for name in self._shards], device=device).int()
        distributed.all_reduce(used, distributed.ReduceOp.MAX)
        for shard, was_used in zip(self._shards.values(), used.tolist(), strict=True):
            if not was_used:
                shard.grad = None
        self._used.clear()
