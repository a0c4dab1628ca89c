"""Optimizers by name: the state that is planned for, exact resuming, and who steps which weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import surefit
from builders import assert_same_weights, echo_rows, mostly_slow, write_jsonl
from surefit.cli import run as command
from surefit.errors import UsageError
from surefit.models.optimizer import OPTIMIZERS, JointOptimizer, Lion, OptimizerSettings

ROWS = echo_rows(24)
LR = 3e-3


def train(rows: Any, output: Path, name: str, steps: int = 4, **options: Any) -> Any:
    settings = {"lr": LR, "batch_size": 4, "schedule": "constant", "eval_share": 0.2, **options}
    settings |= {"model": "tiny:llama", "max_steps": steps, "output": str(output), "quiet": True}
    return surefit.train(data=rows, optimizer=name, **settings)


@pytest.mark.parametrize("name", mostly_slow(OPTIMIZERS, every=3))
def test_a_resumed_run_equals_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    rows = str(write_jsonl(tmp_path / "rows.jsonl", ROWS))
    whole = train(rows, tmp_path / "whole", name)
    train(rows, tmp_path / "run", name, steps=2)
    again = surefit.train(resume=str(tmp_path / "run"), max_steps=4, quiet=True)
    one, other = (
        [event["loss"] for event in run.history if event["event"] == "step"]
        for run in (whole, again)
    )
    assert len(one) == 4
    assert one == other
    assert_same_weights(again.model, whole.model)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_planned_state_is_that_of_the_optimizer(name: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(50, 96), nn.Linear(96, 128), nn.Linear(128, 96))
    module.append(nn.Linear(96, 50))
    settings = OptimizerSettings(LR, kind=OPTIMIZERS[name])
    optimizer = settings.make(module)
    for _ in range(2):
        module(torch.arange(8)).square().sum().backward()
        optimizer.step()
    tensors = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.numel() > 1
    ]
    held = sum(value.nbytes for value in {id(each): each for each in tensors}.values())
    planned = settings.kind.state_bytes(module, lambda weight: weight.nbytes)
    assert planned == pytest.approx(held, rel=0.15)


def test_muon_steps_hidden_matrices_and_adamw_the_rest() -> None:
    module = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, 10))
    optimizer = OptimizerSettings(LR, kind=OPTIMIZERS["muon"]).make(module)
    assert isinstance(optimizer, JointOptimizer)
    muon, adamw = optimizer.parts
    hidden = module.get_parameter("1.weight")
    assert [id(p) for group in muon.param_groups for p in group["params"]] == [id(hidden)]
    assert sum(len(group["params"]) for group in adamw.param_groups) == 4


def test_lion_steps_by_the_sign_of_its_momentum() -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = Lion([weight], lr=0.1)
    weight.grad = torch.tensor([3.0, -0.5])
    optimizer.step()
    assert weight.tolist() == pytest.approx([0.9, -1.9])
    assert optimizer.state[weight]["exp_avg"].tolist() == pytest.approx([0.03, -0.005])


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match="'adam' is not one of adamw, adafactor") as refused:
        surefit.check(data=ROWS, model="tiny:llama", optimizer="adam", quiet=True)
    assert "adamw" in refused.value.fix


def test_state_that_cannot_be_sharded_is_refused_with_fsdp(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = str(write_jsonl(tmp_path / "rows.jsonl", ROWS))
    options = ["--set", "optimizer=adafactor", "--set", "parallel=fsdp", "--processes", "2"]
    assert command(["check", "--data", rows, "--model", "tiny:llama", *options]) == 2
    assert "optimizer=adafactor keeps state that parallel=fsdp cannot shard" in (
        capsys.readouterr().err
    )


def test_a_function_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.py").write_text(
        "import torch\n\n\ndef plain(weights):\n    return torch.optim.SGD(weights, lr=0.05)\n"
    )
    rows = str(write_jsonl(tmp_path / "rows.jsonl", ROWS))
    found = surefit.check(data=rows, model="tiny:llama", optimizer="steps:plain", quiet=True)
    assert any("optimizer: steps:plain is run" in note for note in found.notes)
    run = train(rows, tmp_path / "run", "steps:plain", steps=1)
    assert run.history[0]["lr"] == pytest.approx(0.05)


def test_an_optimizer_that_needs_a_closure_is_refused_by_the_plan() -> None:
    rows = {
        "x": np.random.default_rng(0).normal(size=(20, 4)).astype("float32"),
        "label": [0, 1] * 10,
    }
    own: Any = {"optimizer": torch.optim.LBFGS, "quiet": True, "data": rows}
    with pytest.raises(surefit.UsageError, match=r"LBFGS\.step needs a closure"):
        surefit.check(model=nn.Linear(4, 2), **own)

    def step(modules: Any, batch: Any, number: int) -> Any:
        yield "model", modules["model"](batch["x"]).square().mean()

    with pytest.raises(surefit.UsageError, match=r"LBFGS\.step needs a closure"):
        surefit.check(model=nn.Linear(4, 2), training_step=step, **own)
