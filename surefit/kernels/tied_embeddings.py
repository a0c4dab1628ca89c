"""Tied embeddings: the head and the lookup write one gradient instead of adding two.

By default autograd allocates two gradients of the weight's size, one from the head and one from the
lookup, which is nearly all zeros, and adds them. Here the lookup adds its rows to the head's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


class SharedGradient:
    """Passes the head's gradient to the lookup during one backward pass."""

    def __init__(self) -> None:
        self.looked_up = False
        self.gradient: torch.Tensor | None = None


def find_input_embedding(module: Any) -> Any:
    """The layer that token ids are looked up in; None where the model names none.

    CANINE hashes its characters, and a Perceiver gives its latents, which are no layer.
    """
    try:
        embedding = module.get_input_embeddings()
    except (NotImplementedError, AttributeError):
        return None
    return embedding if getattr(embedding, "weight", None) is not None else None


def find_tied(module: Any, head: Any) -> nn.Embedding | None:
    """The plain input embedding that shares its weight with the head, if the model has one."""
    from torch import nn

    embedding = find_input_embedding(module)
    plain = type(embedding) is nn.Embedding and embedding.max_norm is None
    if not plain or embedding.scale_grad_by_freq or embedding.sparse:
        return None
    return embedding if embedding.weight is getattr(head, "weight", None) else None


@contextmanager
def shared_gradient(embedding: nn.Embedding | None) -> Iterator[SharedGradient | None]:
    """Let lookups add their gradient to the one that the head stores in the yielded value."""
    import torch

    if embedding is None or not torch.is_grad_enabled() or not embedding.weight.requires_grad:
        yield None
        return
    shared = SharedGradient()

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
    """The autograd function, defined on first use because importing torch takes a second."""
    import torch
    from torch.autograd.function import once_differentiable

    class Lookup(torch.autograd.Function):
        """An embedding lookup whose backward adds to the head's gradient, computed before it."""

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
            if total is None:  # another lookup has used it
                total = gradient.new_zeros(ctx.shape)
            if total.device.type == "cuda":  # index_add_ is not deterministic there
                total.index_put_((ids,), rows.to(total.dtype), accumulate=True)
            else:
                total.index_add_(0, ids.to(total.device), rows.to(total.dtype))
            return None, total, None, None

    return Lookup
