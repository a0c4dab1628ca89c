"""`ema`: an average of the weights, equal to torch's, evaluated, saved and resumed to the bit."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import surefit
from builders import MeanPool, echo_rows, events_of, feature_rows, same_pool, stop_at
from surefit.models.optimizer import OptimizerSettings, averaged_weights, find_kind

DECAY = 0.7
OPTIONS: dict[str, Any] = {"data": feature_rows(40), "task": "feature-classification", "lr": 0.01}


def test_evaluations_and_the_saved_model_have_torchs_average(tmp_path: Path) -> None:
    model = same_pool()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))

    def follow(event: Any) -> None:
        if event["event"] == "step":
            average.update_parameters(model)

    options = {**OPTIONS, "max_steps": 6, "eval_every": 6}
    plain = surefit.train(
        model=model, callbacks=[follow], output=str(tmp_path / "plain"), **options
    )
    run = surefit.train(model=same_pool(), ema=DECAY, output=str(tmp_path / "run"), **options)
    assert any("average of the weights over about the last 3 steps" in n for n in run.plan["notes"])
    steps = [[e["loss"] for e in each.history if e["event"] == "step"] for each in (run, plain)]
    assert steps[0] == steps[1]  # training itself is not changed
    expected = average.module.state_dict()
    for module in (run.model, surefit.load(run.path, MeanPool())):
        for name, weight in module.state_dict().items():
            torch.testing.assert_close(weight, expected[name])
    held_out = feature_rows(30, seed=1)
    during = surefit.train(
        model=same_pool(),
        ema=DECAY,
        output=str(tmp_path / "other"),
        **options,
        eval_data=held_out,
    )
    found = during.history[-1]["metrics"]["loss"]
    assert found == pytest.approx(surefit.evaluate(during, held_out)["loss"])
    assert found != pytest.approx(surefit.evaluate(plain, held_out)["loss"])


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon", "adafactor"])
def test_every_optimizer_keeps_the_average(optimizer: str) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
    )
    average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    made = OptimizerSettings(0.1, kind=find_kind(optimizer), ema=DECAY).make(module)
    for _ in range(4):
        module(torch.randn(8, 4)).square().sum().backward()
        made.step()
        made.zero_grad()
        average.update_parameters(module)
    own = [weight.detach().clone() for weight in module.parameters()]
    with averaged_weights(module, made):
        for got, wanted in zip(module.parameters(), average.module.parameters(), strict=True):
            torch.testing.assert_close(got, wanted)
    assert all(map(torch.equal, module.parameters(), own))


def test_resumed_to_the_bit(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "data": echo_rows(40),
        "model": "tiny:llama",
        "lora_r": 4,
        "ema": 0.9,
        "epochs": 2,
        "save_every": 2,
        "generate": {"rows": 0},
    }
    whole = surefit.train(**options, output=str(tmp_path / "whole"))
    stop = stop_at(7, signal.SIGINT)
    with pytest.raises(surefit.SurefitError, match="saved"):
        surefit.train(**options, callbacks=[stop], output=str(tmp_path / "cut"))
    resumed = surefit.train(resume=tmp_path / "cut", data=options["data"])
    assert events_of(whole) == events_of(resumed)
    ours, theirs = whole.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_memory_and_disk_are_planned_for_it() -> None:
    plain, averaged = (surefit.check(model=same_pool(), ema=ema, **OPTIONS) for ema in (None, 0.9))
    trained = sum(weight.nbytes for weight in same_pool().parameters())
    parts = [plan.fit.parts["optimizer"] for plan in (plain, averaged)]
    assert parts[1] - parts[0] == trained
