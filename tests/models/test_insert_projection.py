"""A custom module that expects another feature size gets a projection, saved with it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import surefit
from builders import MeanPool, assert_same_predictions, feature_rows, write_module
from surefit.models.insert_projection import NAME, find_size_mismatch, module_hints


class Recurrent(nn.Module):
    """A classifier whose first layer is not Linear, and whose head is its first submodule."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(16, 3)
        self.body = nn.GRU(width, 16, batch_first=True)

    def forward(self, inputs_embeds: Any) -> Any:
        return self.head(self.body(inputs_embeds)[0][:, -1])


class Attentive(nn.Module):
    """A classifier that passes its input on by keyword."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.TransformerEncoderLayer(width, 2, 16, batch_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        return self.head(self.body(src=inputs_embeds).mean(1))


@pytest.mark.parametrize("module", [MeanPool(width=7), Recurrent(7), Attentive(8)])
def test_projection_is_put_before_the_layer_that_fails(module: nn.Module, tmp_path: Path) -> None:
    spare = copy.deepcopy(module)
    run = surefit.train(
        data=feature_rows(60), model=module, max_steps=3, output=str(tmp_path / "run")
    )
    told = [found for found in run.plan["findings"] if found["code"] == "SF433"]
    assert len(told) == 1
    assert "the data has 4: a projection" in told[0]["message"]
    projection = getattr(module, NAME)
    assert projection.width == 4
    assert not torch.equal(projection.mean, torch.zeros(4))  # standardised from training rows
    rows = feature_rows(9, seed=2)
    expected = surefit.predict(run, rows, model=module)
    again = surefit.load(tmp_path / "run", model=spare)  # a module as it was written
    assert_same_predictions(surefit.predict(tmp_path / "run", rows, model=again), expected)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        getattr(twin, NAME).linear.weight.zero_()
    assert surefit.predict(run, rows, model=module) == expected  # a copy has its own


def test_function_model_is_made_again_with_its_projection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = write_module(tmp_path, "wide", width=6)
    run = surefit.train(data=feature_rows(300), model=name, epochs=6, output="run")
    assert run.metrics["accuracy"] > 0.8
    assert getattr(surefit.load("run"), NAME).width == 4
    assert len(surefit.predict("run", feature_rows(5))) == 5
    assert surefit.evaluate("run", feature_rows(60, seed=3))["accuracy"] > 0.8


def test_the_projection_of_an_earlier_plan_is_taken_out() -> None:
    module = MeanPool(width=7)
    assert surefit.check(data=feature_rows(30), model=module).ok
    assert hasattr(module, NAME)
    plan = surefit.check(data=feature_rows(30, width=7), model=module)
    assert plan.ok
    assert not hasattr(module, NAME)
    assert not module.body._forward_pre_hooks
    other = surefit.check(data=feature_rows(30, width=5), model=module)
    assert other.ok
    assert getattr(module, NAME).width == 5


def test_what_a_projection_cannot_mend_is_left_to_the_probe() -> None:
    module = MeanPool()
    module.head = nn.Linear(15, 3)
    assert find_size_mismatch(module, 5, 4) is None
    plan = surefit.check(data=feature_rows(30), model=module)
    assert [found.code for found in plan.findings if found.severity == "error"] == ["SF305"]


def test_a_module_says_how_flat_and_turned_rows_lie() -> None:
    random = np.random.default_rng(0)
    flat = [{**row, "features": random.normal(size=24)} for row in feature_rows(30)]
    plan = surefit.check(data=flat, model=MeanPool(width=4))
    assert plan.ok
    told = next(found.message for found in plan.findings if found.code == "SF420")
    assert "read as [6, 4]: the module accepts it" in told
    turned = [{**row, "features": random.normal(size=(4, 9))} for row in feature_rows(30)]
    plan = surefit.check(data=turned, model=MeanPool(width=4))
    assert plan.ok
    assert plan.job is not None
    assert plan.job.train.row(0)["inputs_embeds"].shape == (9, 4)
    assert any("fails on [4, 9] and works on [9, 4]" in f.message for f in plan.findings)


def test_trying_a_module_leaves_it_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(5), nn.Dropout(0.5))
    before = copy.deepcopy(module.state_dict())
    state = torch.get_rng_state()
    hints = module_hints(module)
    assert hints.accepts is not None
    assert hints.accepts(5, 4)
    assert not hints.accepts(5, 3)
    assert torch.equal(torch.get_rng_state(), state)
    assert module.training
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())
    assert module_hints(nn.LazyLinear(3)).accepts is None
