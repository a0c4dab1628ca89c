"""What a step changes in a module, and what it only carries along."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from surefit.models.trained_tensors import saved_buffers, trained_tensors
from surefit.training.last_buffers import LastBuffers


class Quantized(nn.Linear):
    """Adds scales to its state that are no buffers, as 4-bit layers do."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight.absmax"] = torch.ones(3, dtype=torch.uint8)

    def get_extra_state(self) -> Any:
        return {"kind": "nf4"}


def test_only_buffers_of_the_state_are_kept() -> None:
    module = nn.Sequential(Quantized(2, 2), nn.BatchNorm1d(2))
    module.register_buffer("passing", torch.zeros(1), persistent=False)
    module[0].requires_grad_(False)
    names = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert set(saved_buffers(module)) == names
    assert set(trained_tensors(module)) == {*names, "1.weight", "1.bias"}
    buffers = LastBuffers(module)
    module(torch.randn(4, 2))
    assert module[1].num_batches_tracked == 1
    buffers.restore()
    assert module[1].num_batches_tracked == 0
