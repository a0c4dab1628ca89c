"""One gradient for a weight that is both the input and the output embedding.

The head makes a gradient as large as the weight, and the lookup at the other end another one,
nearly all zeros, which are then added. Here the lookup adds its few rows to the head's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


class Shared:
    """The head's gradient on its way to the lookup, in one pass through a model."""

    def __init__(self) -> None:
        self.looked_up = False
        self.gradient: torch.Tensor | None = None


def find_tied(module: Any, head: Any) -> nn.Embedding | None:
    """The plain input embedding whose weight is the head's, if the model has one."""
    from torch import nn

    try:
        embedding = module.get_input_embeddings()
    except (NotImplementedError, AttributeError):  # the model names none
        return None
    plain = type(embedding) is nn.Embedding and embedding.max_norm is None
    if not plain or embedding.scale_grad_by_freq or embedding.sparse:
        return None
    return embedding if embedding.weight is getattr(head, "weight", None) else None


@contextmanager
def shared_gradient(embedding: nn.Embedding | None) -> Iterator[Shared | None]:
    """Let lookups add to the gradient that the head will leave in what this yields."""
    import torch

    if embedding is None or not torch.is_grad_enabled() or not embedding.weight.requires_grad:
        yield None
        return
    shared = Shared()

    def look_up(module: nn.Embedding, inputs: tuple[Any, ...], _: Any) -> Any:
        shared.looked_up = True
        return _lookup().apply(inputs[0], module.weight, module.padding_idx, shared)

    hook = embedding.register_forward_hook(look_up)
    try:
        yield shared
    finally:
        hook.remove()


@lru_cache(maxsize=1)
def _lookup() -> Any:
    """Made when it is first used: torch takes a second to import."""
    import torch
    from torch.autograd.function import once_differentiable

    class Lookup(torch.autograd.Function):
        """An embedding whose gradient is added to the head's, which comes before it."""

        @staticmethod
        def forward(ctx: Any, ids: Any, weight: Any, padding: int | None, shared: Any) -> Any:
            ctx.save_for_backward(ids)
            ctx.shape, ctx.padding, ctx.shared = weight.shape, padding, shared
            return torch.nn.functional.embedding(ids, weight)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
            ids = ctx.saved_tensors[0].reshape(-1)
            rows = gradient.reshape(-1, gradient.shape[-1])
            if ctx.padding is not None:
                rows = rows.masked_fill((ids == ctx.padding)[:, None], 0)
            total, ctx.shared.gradient = ctx.shared.gradient, None
            if total is None:  # another lookup had it
                total = gradient.new_zeros(ctx.shape)
            if total.device.type == "cuda":  # where only this one is deterministic
                total.index_put_((ids,), rows.to(total.dtype), accumulate=True)
            else:
                total.index_add_(0, ids.to(total.device), rows.to(total.dtype))
            return None, total, None, None

    return Lookup
