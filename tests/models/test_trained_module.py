"""`--model` names the run or the export of one's own module: its weights, and its code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import surefit
from builders import assert_same_predictions, assert_same_weights
from surefit.cli import run as command
from surefit.errors import UsageError

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, num_classes)

    def forward(self, x, epoch, step):
        return self.head(self.body(x).tanh()) * (1 + epoch) + step / 100

def make(num_classes):
    torch.manual_seed(0)
    return Net(num_classes)
"""


def arrays(num_classes: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    return {"x": x, "label": np.arange(40) % num_classes}


@pytest.mark.slow
def test_export_of_a_module_that_takes_epoch_and_step_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clocked_net.py").write_text(NET)
    rows, code = arrays(2), "clocked_net:make"
    run = surefit.train(data=rows, model=code, epochs=2, output="run")
    assert command(["export", "run", "out"]) == 0
    made = surefit.predict("out", rows, trust_code=code)
    assert_same_predictions(made, surefit.predict("run", rows))
    with pytest.raises(UsageError, match="names the code clocked_net:make"):
        surefit.check(data=rows, model="out")
    for folder, trusted in (("run", ()), ("run/model", ()), ("out", code)):
        plan = surefit.check(data=rows, model=folder, trust_code=trusted)
        assert plan.ok
        assert plan.job is not None
        assert_same_weights(plan.job.pipeline.module, run.model)
    plan = surefit.check(data=arrays(3), model="run")
    (found,) = [found for found in plan.findings if found.code == "SF306"]
    assert "2 weights start untrained: head.bias, head.weight" in found.message
    again = surefit.train(data=rows, model="out", trust_code=code, max_steps=1, output="again")
    assert_same_weights(surefit.load("again"), again.model)  # its code was remembered
