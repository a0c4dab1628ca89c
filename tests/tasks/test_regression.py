"""regression of a table by a module of one's own; see test_several_numbers.py for the metrics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import surefit


def line_rows(count: int) -> list[dict[str, float]]:
    """y = 2a + 3b + 1000, with a little noise."""
    numbers = np.random.default_rng(0).normal(size=(count, 3))
    return [
        {"a": float(a), "b": float(b), "y": float(2 * a + 3 * b + 1000 + 0.1 * noise)}
        for a, b, noise in numbers
    ]


def test_own_module_may_give_one_number_per_row(tmp_path: Path) -> None:
    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return self.layer(features).squeeze(-1)

    run = surefit.train(
        data=line_rows(300), model=Line(), epochs=10, lr=0.05, output=str(tmp_path / "run")
    )
    assert run.metrics["r2"] > 0.99
