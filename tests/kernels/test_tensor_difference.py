"""The largest difference of two tensors, computed in slices."""

from __future__ import annotations

import math

import pytest
import torch

from surefit.kernels import tensor_difference as closeness
from surefit.kernels.tensor_difference import largest_difference


def test_a_difference_in_any_piece_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closeness, "AT_ONCE", 4)
    one = torch.arange(10.0).reshape(2, 5)
    other = one.clone()
    assert largest_difference(one, other) == (0.0, 9.0, 9.0)
    other[1, 0] = -20.0
    assert largest_difference(one, other) == (25.0, 9.0, 20.0)
    other[0, 0] = float("nan")
    assert math.isnan(largest_difference(one, other)[0])
