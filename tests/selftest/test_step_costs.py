"""The step that is profiled is the one that trains: its precision, and its attention kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from surefit.kernels import varlen_kernels
from surefit.kernels.varlen_attention import use_varlen_attention
from surefit.kernels.varlen_kernels import Choice, attend_by_row
from surefit.selftest.step_costs import _Step


def test_the_step_runs_the_kernel_in_the_precision_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.dtype] = []

    def kernel(query: Any, *others: Any) -> Any:
        seen.append(query.dtype)
        return attend_by_row(query, *others)

    choice = Choice(lambda: kernel, dropout=True)
    monkeypatch.setitem(varlen_kernels.KERNELS, "cpu", {"k": choice})
    step = _Step(tmp_path, precision="bf16")
    assert (step.computes["precision"], step.computes["padding_free"]) == ("bf16", True)
    module = step.job.pipeline.module
    use_varlen_attention(module, "k")  # as a plan for a GPU chooses
    step.run()
    assert seen == [torch.bfloat16] * module.config.num_hidden_layers
