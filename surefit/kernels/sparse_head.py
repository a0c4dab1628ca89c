"""The head at labelled tokens only: what is not compared with a label is not computed.

A forward pre-hook on the model's output embedding picks the labelled tokens out of the hidden
states, so that whatever the model does to its logits afterwards still applies ("gathered").

Where that is nothing, a factor or a soft-cap, the logits need not exist at once either: they
are made for a chunk of tokens at a time, turned into the loss and its gradient, and overwritten
by the next chunk ("chunked"). `kernels/choose_head.py` finds out which of the two a model allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from surefit.kernels.onednn_matmul import multiply, pieces
from surefit.kernels.tied_embeddings import Shared, shared_gradient
from surefit.tasks.metrics.token_metrics import LabelledLoss
from surefit.tasks.task_spec import Batch, full_precision

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Tail:
    """What a model does to its logits after the output embedding: `cap(factor · logits)`."""

    factor: float = 1.0
    cap: float | None = None


@dataclass(frozen=True)
class SparseHead:
    """The output embedding of a model, computed at labelled tokens only.

    With a `tail` it is projected on the vocabulary `chunk` tokens at a time; without, the
    model's own forward makes the logits of all labelled tokens together.
    """

    embedding: nn.Module = field(repr=False)
    tail: Tail | None = None
    chunk: int = 256
    tied: nn.Embedding | None = field(default=None, repr=False)
    """The input embedding, where its weight is the output embedding's."""

    def __call__(self, run: Callable[[], Any], batch: Batch) -> LabelledLoss:
        """Run the model on a batch whose labelled tokens are listed."""
        import torch

        positions, labels = batch["labelled_positions"], batch["labelled_targets"]
        known: list[LabelledLoss] = []

        def gather(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            hidden = inputs[0]
            picked = hidden.reshape(-1, hidden.shape[-1]).index_select(0, positions)
            if self.tail is None:
                return (picked[None], *inputs[1:])
            known.append(chunked_loss(picked, module, labels, self.tail, self.chunk, shared))
            return (picked[None, :0], *inputs[1:])

        hook = self.embedding.register_forward_pre_hook(gather)
        try:
            with shared_gradient(self.tied if self.tail is not None else None) as shared:
                outputs = run()
        finally:
            hook.remove()
        if self.tail is not None:
            return known[0]
        logits = full_precision(outputs.logits[0])  # (N, V)
        total = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        hits = None if torch.is_grad_enabled() else (logits.argmax(-1) == labels).sum()
        return LabelledLoss(total, hits, len(labels))


def chunked_loss(
    hidden: torch.Tensor,
    embedding: Any,
    labels: torch.Tensor,
    tail: Tail,
    chunk: int,
    shared: Shared | None = None,
) -> LabelledLoss:
    """Summed cross-entropy of `hidden` (N, H) projected on the vocabulary, chunk by chunk.

    With `shared`, the weight's gradient is left there for the lookup of its input embedding.
    """
    import torch

    learning = torch.is_grad_enabled()  # inside an autograd function it always says no
    left = shared if shared is not None and shared.looked_up else None
    total, hits = _chunked().apply(
        hidden, embedding.weight, embedding.bias, labels, tail, chunk, learning, left
    )
    return LabelledLoss(total, None if learning else hits, len(labels))


_function: Any = None


def _chunked() -> Any:
    """The autograd function, made when torch is there."""
    global _function
    if _function is None:
        import torch

        class ChunkedCrossEntropy(torch.autograd.Function):
            """The gradient is made in the forward, while a chunk's logits are there."""

            @staticmethod
            def forward(ctx: Any, *given: Any) -> tuple[Any, Any]:
                *walked, learning, ctx.shared = given
                wanted = tuple(learning and needed for needed in ctx.needs_input_grad[:3])
                total, hits, *gradients = _walk(wanted, *walked)
                ctx.gradients = gradients
                ctx.mark_non_differentiable(hits)
                return total, hits

            @staticmethod
            def backward(ctx: Any, *above: Any) -> tuple[Any, ...]:
                scaled = [None if g is None else g.mul_(above[0]) for g in ctx.gradients]
                ctx.gradients = None
                if ctx.shared is not None:
                    ctx.shared.gradient, scaled[1] = scaled[1], None
                return (*scaled, *[None] * 5)

        _function = ChunkedCrossEntropy
    return _function


def _walk(
    wanted: tuple[bool, ...],
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    tail: Tail,
    chunk: int,
) -> tuple[Any, ...]:
    """Loss, hits, and the gradients of hidden, weight and bias that are wanted."""
    import torch

    device = "cpu" if hidden.is_meta else hidden.device.type  # shapes alone have no autocast
    low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    projection = weight.to(low)
    wide = torch.promote_types(low, torch.float32)
    grad_hidden = torch.empty_like(hidden) if wanted[0] else None
    grad_weight = torch.zeros_like(weight, dtype=wide) if wanted[1] else None
    grad_bias = torch.zeros_like(bias, dtype=wide) if wanted[2] and bias is not None else None
    total = torch.zeros((), dtype=wide, device=hidden.device)
    hits = torch.zeros((), dtype=torch.int64, device=hidden.device)
    with torch.autocast(device, enabled=False):
        for piece in pieces(len(labels), chunk):
            part, targets = hidden[piece].to(low), labels[piece]
            logits = multiply(part, projection.T)
            if bias is not None:
                logits += bias.to(low)
            logits = logits.to(wide)
            squashed = _apply_tail(logits, tail)
            if not any(wanted):
                hits += (logits.argmax(-1) == targets).sum()
            total += _softmax_loss(logits, targets)
            if not any(wanted):
                continue
            logits[torch.arange(len(targets), device=logits.device), targets] -= 1
            if squashed is not None:
                logits *= squashed
            if tail.factor != 1.0:
                logits *= tail.factor
            gradient = logits.to(low)
            if grad_hidden is not None:
                grad_hidden[piece] = multiply(gradient, projection)
            if grad_weight is not None:
                _add_product(grad_weight, gradient, part)
            if grad_bias is not None:
                grad_bias += logits.sum(0)
    if grad_weight is not None:
        grad_weight = grad_weight.to(weight.dtype)
    if grad_bias is not None and bias is not None:
        grad_bias = grad_bias.to(bias.dtype)
    return total, hits, grad_hidden, grad_weight, grad_bias


def _apply_tail(logits: torch.Tensor, tail: Tail) -> torch.Tensor | None:
    """Factor and soft-cap in place; the slope of the soft-cap where there is one."""
    if tail.factor != 1.0:
        logits *= tail.factor
    if tail.cap is None:
        return None
    logits.div_(tail.cap).tanh_()
    slope = 1 - logits.square()
    logits *= tail.cap
    return slope


def _softmax_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Summed cross-entropy; the logits become their softmax in place, without a second copy."""
    logits -= logits.amax(-1, keepdim=True)
    picked = logits.gather(1, targets[:, None])
    sums = logits.exp_().sum(-1, keepdim=True)
    logits /= sums
    return (sums.log() - picked).sum()


def _add_product(total: torch.Tensor, gradient: torch.Tensor, part: torch.Tensor) -> None:
    """Add `gradientᵀ · part` to `total`, which may be wider than both."""
    if total.dtype == part.dtype:
        total.addmm_(gradient.T, part)
    else:
        total += (gradient.T @ part).to(total.dtype)
