"""Which way of computing the head a model allows, tried on a few real tokens before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from surefit.kernels.sparse_head import SparseHead, Tail
from surefit.kernels.tensor_difference import largest_difference
from surefit.kernels.tied_embeddings import find_tied

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn

PROBED_TOKENS = 24
CLOSE_LOSS = 1e-5
CLOSE_GRADIENT = 1e-4
CHUNK_BYTES = 64 * 2**20
"""Aimed-at size of one chunk's logits: large enough for the GEMM to run at full speed."""


def find_head(module: nn.Module) -> nn.Module | None:
    """The output embedding, where the model names one; adapters are looked through."""
    from torch import nn

    named = getattr(module, "get_output_embeddings", None)
    try:
        embedding = named() if named is not None else None
    except (NotImplementedError, AttributeError):  # the model has no such layer
        return None
    return embedding if isinstance(embedding, nn.Module) else None


def choose_head(
    module: nn.Module, run: Callable[[Mapping[str, Any]], Any], batch: Mapping[str, Any]
) -> tuple[SparseHead | None, str]:
    """The fastest way that gives the plain head's loss and gradients, or None and why not.

    `run(batch)` calls the model as training will; `batch` lists its labelled tokens.
    """
    embedding = find_head(module)
    if embedding is None:
        return None, "the model names no output embedding"
    with _quiet(module):
        try:
            plain = _Plain(module, embedding, run, batch)
        except _UnreachableError as error:
            return None, str(error)
        gathered = SparseHead(embedding)
        if not plain.matches(gathered):
            return None, "its logits at picked positions are not those of the whole rows"
        tail = plain.find_tail()
        if tail is None or not _is_linear(embedding):
            return gathered, ""
        chunked = replace(gathered, tail=tail, chunk=chunk_size(embedding))
        if not plain.matches(chunked):
            return gathered, ""
        shared = replace(chunked, tied=find_tied(module, embedding))
        return (shared if _share(chunked, shared, run, batch) else chunked), ""


def chunk_size(embedding: Any) -> int:
    """Tokens per chunk: 128 to 256, fewer the larger the vocabulary.

    >>> from types import SimpleNamespace as N
    >>> import torch
    >>> [chunk_size(N(weight=torch.empty(rows, 1, device="meta"))) for rows in (4096, 150_000)]
    [256, 128]
    """
    return 256 if embedding.weight.shape[0] * 4 * 256 <= CHUNK_BYTES else 128


def as_choice(head: SparseHead | None) -> dict[str, Any]:
    """What the plan keeps of a head, so that a resumed run has the same one."""
    if head is None:
        return {"positions": "all"}
    if head.tail is None:
        return {"positions": "labelled"}
    shown = {"factor": head.tail.factor, "cap": head.tail.cap}
    tied = {"tied": True} if head.tied is not None else {}
    return {"positions": "labelled", "chunk": head.chunk, **shown, **tied}


def from_choice(module: nn.Module, choice: Mapping[str, Any]) -> SparseHead | None:
    """The head that a plan has chosen before, without trying anything again."""
    embedding = find_head(module)
    if choice["positions"] == "all" or embedding is None:
        return None
    if "chunk" not in choice:
        return SparseHead(embedding)
    tail = Tail(choice["factor"], choice["cap"])
    tied = find_tied(module, embedding) if choice.get("tied") else None
    return SparseHead(embedding, tail, choice["chunk"], tied)


def _share(
    chunked: SparseHead, shared: SparseHead, run: Callable[..., Any], batch: Mapping[str, Any]
) -> bool:
    """Whether head and lookup may share a gradient: it is the same through the whole model."""
    import torch

    if shared.tied is None or not shared.tied.weight.requires_grad:
        return False
    apart, together = (
        torch.autograd.grad(head(lambda: run(batch), batch).total, shared.tied.weight)[0]
        for head in (chunked, shared)
    )
    return _close(together, apart, CLOSE_GRADIENT)


class _UnreachableError(Exception):
    """The output embedding is not where logits come from."""


class _Plain:
    """Loss and gradients of the whole head, from its input on; what a sparse head must match."""

    def __init__(
        self, module: nn.Module, embedding: nn.Module, run: Callable[..., Any], batch: Any
    ) -> None:
        import torch
        from torch.nn.functional import cross_entropy

        self.module, self.embedding, self.run, self.batch = module, embedding, run, batch
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        hidden, raw, logits = self._trace()
        if len(hidden) != 1 or logits is None:
            raise _UnreachableError("its logits do not come from its output embedding alone")
        self.hidden = hidden[0]
        self.raw, self.logits = raw[0].detach(), logits.detach()
        labels, at = batch["labelled_targets"], batch["labelled_positions"]
        rows = batch["labels"].numel()
        if logits[..., 0].numel() != rows or self.hidden[..., 0].numel() != rows:
            raise _UnreachableError("it gives another number of logits than the rows have tokens")
        flat = logits.reshape(-1, logits.shape[-1])
        self.loss = cross_entropy(flat[at], labels, reduction="sum")
        self.gradients = self._gradients(self.loss)
        del flat
        self.loss = self.loss.detach()
        assert torch.is_grad_enabled()

    def _trace(self) -> tuple[list[Any], list[Any], Any]:
        """One run of the model; its head starts from leaves, so gradients end there."""
        hidden: list[Any] = []
        raw: list[Any] = []

        def enter(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            hidden.append(inputs[0].detach().requires_grad_())
            return (hidden[-1], *inputs[1:])

        def leave(module: nn.Module, inputs: Any, output: Any) -> None:
            raw.append(output)

        with _hooked(self.embedding, enter, leave):
            outputs = self.run(self.batch)
        return hidden, raw, getattr(outputs, "logits", None)

    def _gradients(self, loss: Any) -> list[Any]:
        import torch

        wanted = [self.hidden, *self.parameters]
        return list(torch.autograd.grad(loss, wanted, allow_unused=True))

    def find_tail(self) -> Tail | None:
        """What turns the embedding's output into the logits, if it is one of the known ways."""
        raw, logits = self.raw.double(), self.logits.double()
        if raw.shape != logits.shape:
            return None
        factor = float((raw * logits).sum() / (raw * raw).sum())
        if abs(factor - 1) < 1e-6:
            factor = 1.0
        if _close(raw * factor, logits, CLOSE_LOSS):
            return Tail(factor)
        for cap in _caps(self.module):
            if _close(cap * (raw / cap).tanh(), logits, CLOSE_LOSS):
                return Tail(1.0, cap)
        return None

    def matches(self, head: SparseHead) -> bool:
        """Whether the sparse head has the same loss, and the same gradients from there on."""

        def enter(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (self.hidden, *inputs[1:])

        try:
            with _hooked(self.embedding, enter):
                sparse = head(lambda: self.run(self.batch), self.batch)
        except (RuntimeError, IndexError, ValueError, TypeError):  # the model needs all positions
            return False
        if sparse.count != len(self.batch["labelled_targets"]):
            return False
        if not _close(sparse.total.detach(), self.loss, CLOSE_LOSS):
            return False
        found = self._gradients(sparse.total)
        return all(_same(a, b) for a, b in zip(found, self.gradients, strict=True))


def _same(found: Any, plain: Any) -> bool:
    if found is None or plain is None:
        other = found if plain is None else plain
        return other is None or not bool(other.any())
    return _close(found, plain, CLOSE_GRADIENT)


def _close(found: torch.Tensor, plain: torch.Tensor, relative: float) -> bool:
    if found.numel() == 0:
        return True
    apart, _, size = largest_difference(found, plain)
    return apart <= relative * max(size, 1e-12)


def _caps(module: Any) -> list[float]:
    """Numbers of the model's config that are called a cap; they are tried, not trusted."""
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


def _is_linear(embedding: Any) -> bool:
    """Whether the head is exactly a linear layer, without an adapter around it."""
    from torch import nn

    return type(embedding) is nn.Linear


@contextmanager
def _hooked(embedding: nn.Module, enter: Any, leave: Any = None) -> Iterator[None]:
    hooks = [embedding.register_forward_pre_hook(enter)]
    if leave is not None:
        hooks.append(embedding.register_forward_hook(leave))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _quiet(module: nn.Module) -> Iterator[None]:
    """Evaluation mode with gradients; mode and random state are put back."""
    import torch

    training = module.training
    with torch.enable_grad(), torch.random.fork_rng():
        module.eval()
        try:
            yield
        finally:
            module.train(training)
