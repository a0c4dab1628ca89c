"""What a run sets for all of torch holds while it runs, and no longer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import surefit
from builders import MeanPool, feature_rows
from surefit.kernels.deterministic import deterministic_algorithms


def test_deterministic_algorithms_are_for_the_run_that_asks_for_them(tmp_path: Path) -> None:
    seen = []

    def note(event: Any) -> None:
        seen.append(torch.are_deterministic_algorithms_enabled())

    options: dict[str, Any] = {"data": feature_rows(20), "max_steps": 1, "callbacks": [note]}
    for wanted in (True, False):
        run = str(tmp_path / str(wanted))
        surefit.train(model=MeanPool(), deterministic=wanted, output=run, **options)
        assert set(seen) == {wanted}
        seen.clear()
        assert not torch.are_deterministic_algorithms_enabled()
    surefit.check(data=feature_rows(20), model=MeanPool(), deterministic=True, fit="measured")
    assert not torch.are_deterministic_algorithms_enabled()


def test_cublas_is_told_before_planning_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    told = []

    class Noting(MeanPool):
        def forward(self, *inputs: Any, **named: Any) -> Any:
            told.append(os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
            return super().forward(*inputs, **named)

    surefit.check(data=feature_rows(20), model=Noting(), deterministic=True)
    assert told
    assert set(told) == {":4096:8"}  # torch reads it at its first matrix product


def test_what_the_user_has_set_is_put_back() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with deterministic_algorithms(False):
            assert torch.is_deterministic_algorithms_warn_only_enabled()
        with deterministic_algorithms(True):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
