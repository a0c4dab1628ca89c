"""Clipping inside the fused optimizer equals torch's clip_grad_norm_."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator

from surefit.kernels.clipping import make_clipper


def _trained(clip: float, fused: bool, dtype: torch.dtype, by_torch: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(size, dtype=dtype)) for size in (15, 7)]
    optimizer = torch.optim.AdamW(weights, lr=0.1, fused=fused)
    clip_gradients = make_clipper(Accelerator(cpu=True), optimizer, weights, clip)
    for step in range(4):
        scale = 10.0 if step % 2 else 0.01  # clipped in every other step
        sum(((weight * scale) ** 2).sum() for weight in weights).backward()
        if by_torch:
            torch.nn.utils.clip_grad_norm_(weights, clip)
        else:
            clip_gradients()
        optimizer.step()
        optimizer.zero_grad()
    return weights


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_to_clipping_in_a_pass_of_its_own(fused: bool, dtype: torch.dtype) -> None:
    ours, theirs = (_trained(0.5, fused, dtype, by_torch) for by_torch in (False, True))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_no_clipping_is_no_clipping() -> None:
    weight = torch.nn.Parameter(torch.tensor([30.0, 40.0]))
    (weight**2 / 2).sum().backward()
    assert make_clipper(Accelerator(cpu=True), None, [weight], 0.0)() == 50.0
    assert weight.grad is not None
    assert weight.grad.tolist() == [30.0, 40.0]
