"""A module that gives its own mean loss is trained on that mean, whatever its labels leave out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import surefit


class OneEach(nn.Module):
    """A loss of exactly 1 per target, as a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        return {"loss": self.weight * 1.0 + 0.0 * input_ids.sum()}


def test_the_loss_told_is_the_modules_own(tmp_path: Path) -> None:
    rows = [{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]} for _ in range(16)]
    run = surefit.train(
        data=rows,
        model=OneEach(),
        task="sft",
        lr=1e-6,
        eval_share=0.25,
        accept=["SF730"],  # its loss does not depend on the rows
        output=str(tmp_path / "r"),
    )
    steps = [event["loss"] for event in run.history if event["event"] == "step"]
    told = [event["metrics"]["loss"] for event in run.history if event["event"] == "eval"]
    torch.testing.assert_close(torch.tensor(steps + told), torch.ones(len(steps + told)))
