"""Chooses a sparse head for a model by comparing it with the full head on a few real tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from surefit.core.float64 import to_float64
from surefit.speed.numerics import preserved_state, relative_difference, tolerance_of
from surefit.speed.sparse_head import LogitTransform, SparseHead, find_tied

CHUNK_BYTES = 64 * 2**20
"""Target size of one chunk's logits: large enough for the GEMM to run at full speed."""


def find_output_embedding(module: nn.Module) -> nn.Module | None:
    """Return the output embedding, if the model has one; also inside a peft model."""
    named = getattr(module, "get_output_embeddings", None)
    try:
        embedding = named() if named is not None else None
    except (NotImplementedError, AttributeError):  # the model has none
        return None
    return embedding if isinstance(embedding, nn.Module) else None


def choose_head(
    module: nn.Module,
    run: Callable[[Mapping[str, Any]], Any],
    batch: Mapping[str, Any],
    by_token: bool = False,
) -> tuple[SparseHead | None, str]:
    """Return the fastest head with the loss and gradients of the full one, or None and the reason.

    `run(batch)` calls the model as training does; `batch` lists its labelled tokens. `by_token` is
    whether the log-probability of each of them is needed.
    """
    embedding = find_output_embedding(module)
    if embedding is None:
        return None, "the model has no output embedding"
    with preserved_state(module):
        try:
            full = _FullHead(module, embedding, run, batch)
        except _UnreachableError as error:
            return None, str(error)
        gathered = SparseHead(embedding, by_token=by_token)
        if not full.matches(gathered):
            return None, "its logits at selected positions differ from those of whole rows"
        transform = full.find_transform()
        if transform is None or type(embedding) is not nn.Linear:  # such as one with an adapter
            return gathered, ""
        chunked = replace(gathered, transform=transform, chunk=chunk_size(embedding))
        if not full.matches(chunked):
            return gathered, ""
        shared = replace(chunked, tied=find_tied(module, embedding))
        return (shared if _may_share(chunked, shared, run, batch) else chunked), ""


def chunk_size(embedding: Any) -> int:
    """Return tokens per chunk: 128 to 256, on an accelerator 1,024 to 2,048; fewer for large
    vocabularies.

    An accelerator reads all the weights for each chunk, and needs more tokens to be worth it.

    >>> from types import SimpleNamespace as N
    >>> import torch
    >>> [chunk_size(N(weight=torch.empty(rows, 1, device="meta"))) for rows in (4096, 150_000)]
    [256, 128]
    """
    most = 2_048 if torch.accelerator.is_available() else 256
    return most if embedding.weight.shape[0] * 4 * 256 <= CHUNK_BYTES else most // 2


@dataclass(frozen=True)
class HeadChoice:
    """The head as plan.json stores it, so that a resumed run uses the same one."""

    positions: Literal["all", "labelled"]
    chunk: int | None = None
    factor: float = 1.0
    cap: float | None = None
    tied: bool = False
    reason: str | None = None
    """Why the full head is used."""


def as_choice(head: SparseHead | None, why: str = "") -> HeadChoice:
    """Return the choice of a head, or of the full one and the reason."""
    if head is None:
        return HeadChoice("all", reason=why or None)
    if head.transform is None:
        return HeadChoice("labelled")
    tied, transform = head.tied is not None, head.transform
    return HeadChoice("labelled", head.chunk, transform.factor, transform.cap, tied)


def from_choice(module: nn.Module, choice: HeadChoice) -> SparseHead | None:
    """Return the head that was chosen, without testing it again."""
    embedding = find_output_embedding(module)
    if choice.positions == "all" or embedding is None:
        return None
    if choice.chunk is None:
        return SparseHead(embedding)
    transform = LogitTransform(choice.factor, choice.cap)
    tied = find_tied(module, embedding) if choice.tied else None
    return SparseHead(embedding, transform, choice.chunk, tied)


def _may_share(
    chunked: SparseHead, shared: SparseHead, run: Callable[..., Any], batch: Mapping[str, Any]
) -> bool:
    """Whether head and lookup may share a gradient: the result is the same through the model."""
    if shared.tied is None or not shared.tied.weight.requires_grad:
        return False
    separate, together = (
        torch.autograd.grad(head(lambda: run(batch), batch).total, shared.tied.weight)[0]
        for head in (chunked, shared)
    )
    return _same(together, separate)


class _UnreachableError(Exception):
    """The logits do not come from the output embedding."""


class _FullHead:
    """Loss and gradients of the full head from its input on, which a sparse head must match."""

    def __init__(
        self, module: nn.Module, embedding: nn.Module, run: Callable[..., Any], batch: Any
    ) -> None:
        self.module, self.embedding, self.run, self.batch = module, embedding, run, batch
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        hidden, raw, logits = self._trace()
        if len(hidden) != 1 or logits is None:
            raise _UnreachableError("its logits are not computed by its output embedding alone")
        self.hidden = hidden[0]
        self.raw, self.logits = raw[0].detach(), logits.detach()
        labels, at = batch["labelled_targets"], batch["labelled_positions"]
        rows = batch["labels"].numel()
        if logits[..., 0].numel() != rows or self.hidden[..., 0].numel() != rows:
            raise _UnreachableError("the number of its logits differs from the number of tokens")
        flat = logits.reshape(-1, logits.shape[-1])
        self.loss = cross_entropy(flat[at], labels, reduction="sum")
        self.gradients = self._gradients(self.loss)
        del flat
        self.loss = self.loss.detach()
        assert torch.is_grad_enabled()

    def _trace(self) -> tuple[list[Any], list[Any], Any]:
        """Run the model once; the head's input is detached, so gradients stop there."""
        hidden: list[Any] = []
        raw: list[Any] = []

        def enter(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            hidden.append(inputs[0].detach().requires_grad_())
            return (hidden[-1], *inputs[1:])

        def leave(module: nn.Module, inputs: Any, output: Any) -> None:
            raw.append(output)

        head = self.embedding
        with head.register_forward_pre_hook(enter), head.register_forward_hook(leave):
            outputs = self.run(self.batch)
        return hidden, raw, getattr(outputs, "logits", None)

    def _gradients(self, loss: Any) -> list[Any]:
        wanted = [self.hidden, *self.parameters]
        return list(torch.autograd.grad(loss, wanted, allow_unused=True))

    def find_transform(self) -> LogitTransform | None:
        """What turns the embedding's output into the logits, if it is a factor or a soft-cap."""
        raw, logits = to_float64(self.raw), to_float64(self.logits)
        if raw.shape != logits.shape:
            return None
        factor = float((raw * logits).sum() / (raw * raw).sum())
        if abs(factor - 1) < 1e-6:
            factor = 1.0
        close = tolerance_of(self.logits).loss
        if relative_difference(raw * factor, logits) <= close:
            return LogitTransform(factor)
        for cap in _caps(self.module):
            if relative_difference(cap * (raw / cap).tanh(), logits) <= close:
                return LogitTransform(1.0, cap)
        return None

    def matches(self, head: SparseHead) -> bool:
        """Return whether the sparse head gives the same loss and the same gradients."""

        def enter(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (self.hidden, *inputs[1:])

        try:
            with self.embedding.register_forward_pre_hook(enter):
                sparse = head(lambda: self.run(self.batch), self.batch)
        except (RuntimeError, IndexError, ValueError, TypeError):  # the model needs all positions
            return False
        if sparse.count != len(self.batch["labelled_targets"]):
            return False
        close = tolerance_of(self.logits).loss
        if relative_difference(sparse.total.detach(), self.loss) > close:
            return False
        found = self._gradients(sparse.total)
        return all(_same(a, b) for a, b in zip(found, self.gradients, strict=True))


def _same(found: Any, expected: Any) -> bool:
    if found is None or expected is None:
        other = found if expected is None else expected
        return other is None or not bool(other.any())
    return relative_difference(found, expected) <= tolerance_of(found, expected).gradients


def _caps(module: Any) -> list[float]:
    """Return values in the model's config whose name has `cap` in it; each is tested."""
    config = getattr(module, "config", None)
    if config is None:
        return []
    configs = [config, *filter(None, [getattr(config, "text_config", None)])]
    return [
        float(value)
        for each in configs
        for name, value in vars(each).items()
        if "cap" in name and isinstance(value, int | float) and value
    ]
