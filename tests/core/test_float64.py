"""Sums in float64, also of tensors on devices that have no float64."""

from __future__ import annotations

from typing import Any

import torch

from surefit.core.float64 import to_float64


class OnMps:
    """A tensor of a device without float64."""

    device = torch.device("mps")

    def double(self) -> Any:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    def cpu(self) -> torch.Tensor:
        return torch.ones(2)


def test_a_tensor_is_widened_where_it_can_be() -> None:
    moved: Any = OnMps()
    assert to_float64(moved).dtype == torch.float64
    assert to_float64(torch.ones(2, dtype=torch.bfloat16)).tolist() == [1.0, 1.0]
    assert to_float64(torch.ones(2, device="meta")).is_meta
