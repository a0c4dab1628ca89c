"""The gradient that a lookup and a tied head share equals the sum of their two gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from surefit.kernels.sparse_head import Chunks, LogitTransform, chunked_loss
from surefit.kernels.tied_embeddings import find_tied, shared_gradient

VOCABULARY, WIDTH = 30, 8
CHUNKS = Chunks(LogitTransform(), 2)


class Tied(nn.Module):
    """An embedding lookup, a mixing layer, and a tied head."""

    def __init__(self, padding_idx: int | None = None, lookups: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.lookups = lookups

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, ids: torch.Tensor) -> Any:
        return self.mix(sum(self.embedding(ids + place) for place in range(self.lookups)))


def gradient(module: Tied, *, shares: bool) -> torch.Tensor:
    ids = torch.tensor([3, 3, 0, 7, 1])
    labels = torch.tensor([1, 2, 3, 3, 0])
    module.zero_grad()
    with shared_gradient(module.embedding if shares else None) as shared:
        labelled = chunked_loss(module(ids), module.head, labels, CHUNKS, shared)
    (labelled.total * 0.5).backward()  # type: ignore[no-untyped-call]
    assert module.embedding.weight.grad is not None
    return module.embedding.weight.grad.clone()


@pytest.mark.parametrize("padding_idx", [None, 0])
@pytest.mark.parametrize("lookups", [1, 2])
def test_one_gradient_is_the_sum_of_both(padding_idx: int | None, lookups: int) -> None:
    torch.manual_seed(0)
    module = Tied(padding_idx, lookups).double()
    apart, together = (gradient(module, shares=shares) for shares in (False, True))
    torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-12)
    assert not module.embedding._forward_hooks


def test_a_model_that_looks_nothing_up_loses_no_gradient() -> None:
    torch.manual_seed(0)
    module = Tied().double()
    hidden = torch.randn(4, WIDTH, dtype=torch.float64)
    labels = torch.tensor([1, 2, 3, 4])
    with shared_gradient(module.embedding) as shared:
        labelled = chunked_loss(module.mix(hidden), module.head, labels, CHUNKS, shared)
    labelled.total.backward()  # type: ignore[no-untyped-call]
    assert module.head.weight.grad is not None
    assert module.head.weight.grad.any()


def test_only_plain_embeddings_of_the_same_weight_are_tied() -> None:
    module = Tied()
    assert find_tied(module, module.head) is module.embedding
    assert find_tied(module, nn.Linear(WIDTH, VOCABULARY)) is None
    assert find_tied(nn.Linear(2, 2), module.head) is None
    module.embedding.scale_grad_by_freq = True
    assert find_tied(module, module.head) is None
