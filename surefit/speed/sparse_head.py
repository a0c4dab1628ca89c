"""Sparse head: logits and loss are computed at labelled tokens only.

A forward pre-hook on the model's output embedding selects the hidden states of the labelled
tokens. Whatever the model does to its logits afterwards still applies ("gathered").

Where the model only scales or soft-caps its logits, they are computed for one chunk of tokens at
a time and turned into the loss and its gradient, so all logits never exist at once ("chunked").
`plan/layout.py` tests which of the two a model allows. Losses of whole answers, as in
preference tuning, need the log-probability of each token instead of their sum (`by_token`).

Of tied embeddings, autograd would allocate two gradients of the weight's size, one from the head
and one from the lookup, which is nearly all zeros. Here the lookup adds its rows to the head's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from surefit.speed.precision import lower_precision
from surefit.targets.metrics.token_metrics import LabelledLoss, smoothed_sums
from surefit.targets.task_spec import Batch, full_precision


@dataclass(frozen=True)
class LogitTransform:
    """What a model does to its logits after the output embedding: `softcap(factor · logits)`."""

    factor: float = 1.0
    cap: float | None = None


@dataclass(frozen=True)
class Chunks:
    """How the loss is computed chunk by chunk: tokens per chunk, and what becomes of logits."""

    transform: LogitTransform
    size: int
    smoothing: float = 0.0
    """Share of each target that is spread over the vocabulary."""
    by_token: bool = False
    """Whether the log-probability of each token is kept, not only their sum."""


@dataclass(frozen=True)
class SparseHead:
    """The output embedding of a model, computed at labelled tokens only.

    With a `transform`, the logits of `chunk` tokens are computed at a time. Without, the model's
    forward computes the logits of all labelled tokens at once.
    """

    embedding: nn.Module = field(repr=False)
    transform: LogitTransform | None = None
    chunk: int = 256
    tied: nn.Embedding | None = field(default=None, repr=False)
    """The input embedding, if it shares its weight with the output embedding."""
    smoothing: float = 0.0
    """Label smoothing of the loss."""
    by_token: bool = False
    """Whether the log-probability of each labelled token is kept, not only their sum."""

    def __call__(self, run: Callable[[], Any], batch: Batch) -> LabelledLoss:
        """Run the model on a batch that lists its labelled tokens."""
        positions, labels = batch["labelled_positions"], batch["labelled_targets"]
        known: list[LabelledLoss] = []

        def gather(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            hidden = inputs[0]
            picked = hidden.reshape(-1, hidden.shape[-1]).index_select(0, positions)
            if self.transform is None:
                return (picked[None], *inputs[1:])
            chunks = Chunks(self.transform, self.chunk, self.smoothing, self.by_token)
            known.append(chunked_loss(picked, module, labels, chunks, shared))
            return (picked[None, :0], *inputs[1:])

        tied = self.tied if self.transform is not None else None
        with self.embedding.register_forward_pre_hook(gather), shared_gradient(tied) as shared:
            outputs = run()
        added = getattr(outputs, "auxiliary_loss", None)
        if self.transform is not None:
            return known[0] if added is None else replace(known[0], auxiliary_loss=added)
        logits = full_precision(outputs.logits[0])  # (N, V)
        if self.by_token:
            log_probs = logits.log_softmax(-1).gather(1, labels[:, None])[:, 0]
            return LabelledLoss(-log_probs.sum(), None, len(labels), added, log_probs=log_probs)
        total, plain = smoothed_sums(logits, labels, self.smoothing)
        hits = None if torch.is_grad_enabled() else (logits.argmax(-1) == labels).sum()
        return LabelledLoss(total, hits, len(labels), added, plain)


def chunked_loss(
    hidden: torch.Tensor,
    embedding: Any,
    labels: torch.Tensor,
    chunks: Chunks,
    shared: SharedGradient | None = None,
) -> LabelledLoss:
    """Summed cross-entropy of `hidden` (N, H) projected to the vocabulary, chunk by chunk.

    With `shared`, the weight's gradient is passed to the lookup of the tied input embedding.
    """
    training = torch.is_grad_enabled()  # always False inside an autograd function
    passed = shared if shared is not None and shared.looked_up else None
    given = (hidden, embedding.weight, embedding.bias, labels, chunks, training, passed)
    apply: Any = (ChunkedLogProbs if chunks.by_token else ChunkedCrossEntropy).apply
    if chunks.by_token:
        log_probs = apply(*given)
        return LabelledLoss(-log_probs.sum(), None, len(labels), log_probs=log_probs)
    total, hits, plain = apply(*given)
    hits, plain = (None, None) if training else (hits, plain if chunks.smoothing else None)
    return LabelledLoss(total, hits, len(labels), plain=plain)


class Gradients:
    """The gradients of hidden states, weight and bias that are wanted, added up over chunks."""

    def __init__(
        self,
        wanted: Sequence[bool],
        low: torch.dtype,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> None:
        self.low, self.wide = low, torch.promote_types(low, torch.float32)
        self.hidden, self.weight, self.bias = hidden, weight, bias
        self.projection = weight.to(low)
        self.of_hidden = torch.empty_like(hidden) if wanted[0] else None
        self.of_weight, self.of_bias = (
            torch.zeros_like(each, dtype=self.wide) if is_wanted and each is not None else None
            for is_wanted, each in zip(wanted[1:], (weight, bias), strict=True)
        )

    def chunks(self, chunks: Chunks) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor | None]]:
        """Yield the tokens of each chunk, their logits, and the slope of their soft-cap."""
        for start in range(0, len(self.hidden), chunks.size):
            piece = slice(start, start + chunks.size)
            logits = self.hidden[piece].to(self.low) @ self.projection.T
            if self.bias is not None:
                logits += self.bias.to(self.low)
            logits = logits.to(self.wide)
            yield piece, logits, _apply_transform(logits, chunks.transform)

    def add(self, piece: slice, full: torch.Tensor) -> None:
        """Add what the gradient of a chunk's raw logits gives."""
        gradient = full.to(self.low)
        if self.of_hidden is not None:
            self.of_hidden[piece] = gradient @ self.projection
        if self.of_weight is not None:
            _add_product(self.of_weight, gradient, self.hidden[piece].to(self.low))
        if self.of_bias is not None:
            self.of_bias += full.sum(0)

    def cast(self) -> list[torch.Tensor | None]:
        """Return them in the precision of what they are of."""
        return [self.of_hidden, _cast(self.of_weight, self.weight), _cast(self.of_bias, self.bias)]


def _pass_on(ctx: Any, gradients: list[Any]) -> tuple[Any, ...]:
    """Return gradients by argument; that of a shared weight goes to the lookup."""
    if ctx.shared is not None:
        ctx.shared.gradient, gradients[1] = gradients[1], None
    return (*gradients, *[None] * 4)


class ChunkedCrossEntropy(torch.autograd.Function):
    """Computes the gradients in the forward pass, while a chunk's logits exist."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Any, ...]:
        hidden, weight, bias, labels, chunks, training, ctx.shared = given
        wanted = tuple(training and needed for needed in ctx.needs_input_grad[:3])
        low, smoothing = lower_precision(hidden) or weight.dtype, chunks.smoothing
        found = Gradients(wanted, low, hidden, weight, bias)
        plain = torch.zeros((), dtype=found.wide, device=hidden.device)
        spread = torch.zeros_like(plain)
        hits = torch.zeros((), dtype=torch.int64, device=hidden.device)
        with _products(hidden):
            for piece, logits, slope in found.chunks(chunks):
                targets = labels[piece]
                if not any(wanted):
                    hits += (logits.argmax(-1) == targets).sum()
                own, over_all = _softmax_loss(logits, targets, spread=bool(smoothing))
                plain += own
                spread += over_all
                if not any(wanted):
                    continue
                logits[torch.arange(len(targets), device=logits.device), targets] -= 1 - smoothing
                if smoothing:
                    logits -= smoothing / logits.shape[-1]
                found.add(piece, _through_transform(logits, slope, chunks))
        ctx.gradients = found.cast()
        ctx.mark_non_differentiable(hits, plain)
        return (1 - smoothing) * plain + smoothing * spread, hits, plain

    @staticmethod
    def backward(ctx: Any, *above: Any) -> tuple[Any, ...]:
        scaled = [None if g is None else g.mul_(above[0]) for g in ctx.gradients]
        ctx.gradients = None
        return _pass_on(ctx, scaled)


class ChunkedLogProbs(torch.autograd.Function):
    """Log-probabilities of labels, whose gradients each have a factor of their own.

    If the weight is frozen, the gradients of hidden states are computed in the forward pass, while
    a chunk's logits exist, and scaled later. That of the weight is a sum over tokens, which needs
    the factors: the logits of each chunk are then computed again in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        hidden, weight, bias, labels, chunks, training, ctx.shared = given
        wanted = ctx.needs_input_grad[:3] if training else (False,) * 3
        ctx.chunks, ctx.has_weight = chunks, any(wanted[1:])
        ctx.low = lower_precision(hidden) or weight.dtype
        is_kept = wanted[0] and not ctx.has_weight
        found = Gradients((is_kept, False, False), ctx.low, hidden, weight, bias)
        log_probs = torch.empty(len(labels), dtype=found.wide, device=hidden.device)
        with _products(hidden):
            for piece, logits, slope in found.chunks(chunks):
                targets = labels[piece, None]
                logits -= logits.amax(-1, keepdim=True)
                picked = logits.gather(1, targets)
                sums = logits.exp_().sum(-1, keepdim=True)
                log_probs[piece] = (picked - sums.log())[:, 0]
                if is_kept:
                    found.add(piece, _log_prob_slope(logits.div_(sums), targets, slope, chunks))
        kept = (found.of_hidden,) if is_kept else (hidden, weight, bias, labels)
        ctx.save_for_backward(*(kept if any(wanted) else ()))
        return log_probs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: torch.Tensor) -> tuple[Any, ...]:
        if not ctx.has_weight:
            (slopes,) = ctx.saved_tensors
            return (slopes * above[:, None].to(slopes.dtype), *[None] * 6)
        *of, labels = ctx.saved_tensors
        found = Gradients(ctx.needs_input_grad[:3], ctx.low, *of)
        with _products(of[0]):
            for piece, logits, slope in found.chunks(ctx.chunks):
                targets = labels[piece, None]
                full = _log_prob_slope(logits.softmax(-1), targets, slope, ctx.chunks)
                found.add(piece, full.mul_(above[piece, None]))
        return _pass_on(ctx, found.cast())


def _cast(gradient: torch.Tensor | None, like: torch.Tensor | None) -> torch.Tensor | None:
    return gradient if gradient is None or like is None else gradient.to(like.dtype)


def _products(hidden: torch.Tensor) -> Any:
    """Return a context in which products have the precision of their operands."""
    device = "cpu" if hidden.is_meta else hidden.device.type  # the meta device has no autocast
    return torch.autocast(device, enabled=False)


def _log_prob_slope(
    probabilities: torch.Tensor, targets: torch.Tensor, slope: torch.Tensor | None, chunks: Chunks
) -> torch.Tensor:
    """Return the gradient of each target's log-probability by the raw logits, in place."""
    gradient = probabilities.neg_()
    gradient.scatter_add_(1, targets, torch.ones_like(targets, dtype=gradient.dtype))
    return _through_transform(gradient, slope, chunks)


def _through_transform(
    gradient: torch.Tensor, slope: torch.Tensor | None, chunks: Chunks
) -> torch.Tensor:
    """Return the gradient by the raw logits of one by the logits, in place."""
    if slope is not None:
        gradient *= slope
    if chunks.transform.factor != 1.0:
        gradient *= chunks.transform.factor
    return gradient


def _apply_transform(logits: torch.Tensor, transform: LogitTransform) -> torch.Tensor | None:
    """Apply factor and soft-cap in place; returns the slope of the soft-cap, if there is one."""
    if transform.factor != 1.0:
        logits *= transform.factor
    if transform.cap is None:
        return None
    logits.div_(transform.cap).tanh_()
    slope = 1 - logits.square()
    logits *= transform.cap
    return slope


def _softmax_loss(logits: torch.Tensor, targets: torch.Tensor, spread: bool) -> tuple[Any, Any]:
    """Summed cross-entropy with the targets and, for `spread`, with all tokens alike.

    Replaces the logits by their softmax in place.
    """
    logits -= logits.amax(-1, keepdim=True)
    picked = logits.gather(1, targets[:, None])
    means = logits.mean(-1, keepdim=True) if spread else None
    sums = logits.exp_().sum(-1, keepdim=True)
    logits /= sums
    logs = sums.log()
    return (logs - picked).sum(), 0.0 if means is None else (logs - means).sum()


def _add_product(total: torch.Tensor, gradient: torch.Tensor, part: torch.Tensor) -> None:
    """Add `gradientᵀ · part` to `total`, whose dtype may be wider."""
    if total.dtype == part.dtype:
        total.addmm_(gradient.T, part)
    else:
        total += (gradient.T @ part).to(total.dtype)


class SharedGradient:
    """Passes the head's gradient to the lookup during one backward pass."""

    def __init__(self) -> None:
        self.looked_up = False
        self.gradient: torch.Tensor | None = None


def find_input_embedding(module: Any) -> Any:
    """Return the layer that token ids are looked up in; None where the model names none.

    CANINE hashes its characters, and a Perceiver gives its latents, which are no layer.
    """
    try:
        embedding = module.get_input_embeddings()
    except (NotImplementedError, AttributeError):
        return None
    return embedding if getattr(embedding, "weight", None) is not None else None


def find_tied(module: Any, head: Any) -> nn.Embedding | None:
    """Return plain input embedding that shares its weight with the head, if the model has one."""
    embedding = find_input_embedding(module)
    plain = type(embedding) is nn.Embedding and embedding.max_norm is None
    if not plain or embedding.scale_grad_by_freq or embedding.sparse:
        return None
    return embedding if embedding.weight is getattr(head, "weight", None) else None


@contextmanager
def shared_gradient(embedding: nn.Embedding | None) -> Iterator[SharedGradient | None]:
    """Let lookups add their gradient to the one that the head stores in the yielded value."""
    if embedding is None or not torch.is_grad_enabled() or not embedding.weight.requires_grad:
        yield None
        return
    shared = SharedGradient()

    def look_up(module: nn.Embedding, inputs: tuple[Any, ...], _: Any) -> Any:
        shared.looked_up = True
        apply: Any = Lookup.apply
        return apply(inputs[0], module.weight, module.padding_idx, shared)

    with embedding.register_forward_hook(look_up):
        yield shared


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
