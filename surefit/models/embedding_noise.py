"""NEFTune (arXiv:2310.05914): noise on the embeddings of tokens in training, drawn for each row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from surefit.errors import UsageError
from surefit.speed.sparse_head import find_input_embedding

if TYPE_CHECKING:
    from torch import nn

    from surefit.inputs.store import Store

COLUMN = "embedding_noise"
PURPOSE = 2
"""Tells these draws from others that go by (seed, epoch, row, copy)."""


@dataclass(frozen=True)
class RowNoise:
    """The noise of the rows of a batch: its strength, and the seed of each row."""

    alpha: float
    seeds: tuple[int, ...]

    def draw(self, number: int, count: int, length: int, size: int) -> torch.Tensor:
        """Return uniform noise (length, size) for one of `count` sequences; a shorter sequence of
        the same row has the first of these numbers."""
        row = number * len(self.seeds) // count
        generator = torch.Generator().manual_seed(self.seeds[row])
        return torch.empty(length, size).uniform_(-1, 1, generator=generator)

    def of(self, embedded: torch.Tensor, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return the noise for embeddings (B, T, H), scaled by alpha / sqrt(tokens of the row · H).

        Rows that lie one behind another have the noise that they have when they are padded.
        """
        rows, length, size = embedded.shape
        lengths, mask = batch.get("row_lengths"), batch.get("attention_mask")
        if lengths is not None:
            drawn = [
                self.draw(number, len(lengths), each, size).div_(math.sqrt(each * size))
                for number, each in enumerate(lengths)
            ]
            return torch.cat(drawn)[None].to(embedded) * self.alpha
        padded = torch.stack([self.draw(number, rows, length, size) for number in range(rows)])
        counts = embedded.new_full((rows,), length) if mask is None else mask.sum(1)
        return padded.to(embedded) * (self.alpha / (counts * size).sqrt())[:, None, None]


def row_noise(alpha: float, seed: int, epoch: int, store: Store, rows: Any) -> RowNoise:
    """Return the noise of rows of a Store: a pure function of seed, epoch and row."""
    keys = ((int(store.source_row[row]), int(store.copy[row])) for row in rows)
    drawn = (np.random.SeedSequence([seed, epoch, *key, PURPOSE]) for key in keys)
    return RowNoise(alpha, tuple(int(each.generate_state(1)[0]) for each in drawn))


@contextmanager
def noisy_embeddings(model: Any, batch: Mapping[str, Any]) -> Iterator[None]:
    """Add the noise that a batch of training brings to the embeddings of its tokens."""
    noise: RowNoise | None = batch.get(COLUMN)
    if noise is None:
        yield
        return
    embedding = find_input_embedding(getattr(model, "module", model))
    hook = embedding.register_forward_hook(lambda _, ids, out: out + noise.of(out, batch))
    try:
        yield
    finally:
        hook.remove()


def refuse_noise(module: nn.Module) -> None:
    """Refuse noise for a model in which it would have no effect."""
    has_two = getattr(getattr(module, "config", None), "is_encoder_decoder", False)
    if find_input_embedding(module) is not None and not has_two:
        return
    raise UsageError(
        "neftune adds noise to the embeddings of tokens; this model has none, or shares them "
        "between an encoder and a decoder.",
        "Leave neftune out.",
    )
