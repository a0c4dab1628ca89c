"""Where a model's logits are computed: the sparse heads that it may have, and the chosen one.

`plan/layout.py` tries them on a few real tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from surefit.core.float64 import to_float64
from surefit.speed.numerics import relative_difference, tolerance_of
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


def from_choice(module: nn.Module, choice: HeadChoice) -> SparseHead | None:
    """Return the head that was chosen; None for the full one."""
    embedding = find_output_embedding(module)
    if choice.positions == "all" or embedding is None:
        return None
    if choice.chunk is None:
        return SparseHead(embedding)
    transform = LogitTransform(choice.factor, choice.cap)
    tied = find_tied(module, embedding) if choice.tied else None
    return SparseHead(embedding, transform, choice.chunk, tied)


@contextmanager
def noting_logits(module: nn.Module) -> Iterator[list[Any]]:
    """While the block runs, note what the output embedding returns in each of its calls."""
    noted: list[Any] = []
    embedding = find_output_embedding(module)
    if embedding is None:
        yield noted
        return
    with embedding.register_forward_hook(lambda *given: noted.append(given[2])):
        yield noted


def possible_heads(
    module: nn.Module, noted: Sequence[Any], logits: Any, num_tokens: int
) -> tuple[HeadChoice, ...]:
    """Return the heads to try, the fastest first; the last is the full one, with the reason for it.

    `noted` is what the output embedding returned for a batch of padded rows, and `logits` what the
    model made of it.
    """
    embedding = find_output_embedding(module)
    if embedding is None:
        return (HeadChoice("all", reason="the model has no output embedding"),)
    if len(noted) != 1 or logits is None:
        reason = "its logits are not computed by its output embedding alone"
        return (HeadChoice("all", reason=reason),)
    if any(each[..., 0].numel() != num_tokens for each in (logits, noted[0])):
        reason = "the number of its logits differs from the number of tokens"
        return (HeadChoice("all", reason=reason),)
    reason = "its logits at selected positions differ from those of whole rows"
    others = HeadChoice("labelled"), HeadChoice("all", reason=reason)
    transform = _find_transform(module, noted[0], logits)
    if transform is None or type(embedding) is not nn.Linear:  # such as one with an adapter
        return others
    chunked = HeadChoice("labelled", chunk_size(embedding), transform.factor, transform.cap)
    tied = find_tied(module, embedding)
    if tied is None or not tied.weight.requires_grad:
        return chunked, *others
    return replace(chunked, tied=True), chunked, *others


def _find_transform(
    module: nn.Module, noted: torch.Tensor, logits: torch.Tensor
) -> LogitTransform | None:
    """What turns the embedding's output into the logits, if it is a factor or a soft-cap."""
    raw, made = to_float64(noted.detach()), to_float64(logits.detach())
    if raw.shape != made.shape:
        return None
    factor = float((raw * made).sum() / (raw * raw).sum())
    if abs(factor - 1) < 1e-6:
        factor = 1.0
    close = tolerance_of(logits).loss
    if relative_difference(raw * factor, made) <= close:
        return LogitTransform(factor)
    for cap in _caps(module):
        if relative_difference(cap * (raw / cap).tanh(), made) <= close:
            return LogitTransform(1.0, cap)
    return None


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
