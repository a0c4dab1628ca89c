"""Weights at any address become aligned, keep their values, and stay shared."""

from __future__ import annotations

import torch
from torch import nn

from surefit.kernels.aligned_weights import ALIGNMENT, align_weights


def unaligned(*shape: int) -> torch.Tensor:
    """Values behind two others, as in a file."""
    size = int(torch.Size(shape).numel())
    return torch.randn(size + 2)[2:].view(shape)


def test_every_weight_is_aligned_and_keeps_its_value() -> None:
    module = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 5, bias=False))
    module[2].weight = nn.Parameter(module[0].weight.data.T)  # a view of another weight
    module[0].weight.data = unaligned(3, 5)
    module[1].running_mean = unaligned(3)
    module.register_parameter("tied", module[0].weight)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    align_weights(module)
    assert all(value.data_ptr() % ALIGNMENT == 0 for value in module.state_dict().values())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.tied is module[0].weight


def test_weights_that_share_memory_still_do() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    first.weight.data = unaligned(4, 4)
    second.weight.data = first.weight.data
    align_weights(nn.ModuleList([first, second]))
    assert first.weight.data_ptr() == second.weight.data_ptr()
    assert first.weight.data_ptr() % ALIGNMENT == 0
