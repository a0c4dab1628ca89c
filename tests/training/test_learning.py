"""What only a run shows: zero gradients, weights that do not move, a loss that blows up."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import surefit
from builders import MeanPool, echo_rows, feature_rows
from surefit.errors import RunFailedError
from surefit.plan.rate_test import Rates, try_rate
from surefit.run.run_folder import open_run
from surefit.training.watch_loss import diverged_since, is_stuck


class Stopped(MeanPool):
    """Its loss has no slope in training mode, which no probe in evaluation mode sees."""

    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        logits = super().forward(inputs_embeds, attention_mask)
        return logits * 0 if self.training else logits


class BlowsUp(MeanPool):
    """Its outputs are a million times larger, and wrong, after some calls in training mode."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.calls, self.after = 0, after

    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        logits = super().forward(inputs_embeds, attention_mask)
        self.calls += self.training
        return logits * -1e6 if self.calls > self.after and self.training else logits


def test_a_run_whose_gradients_are_all_zero_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match="gradients of all 4 trainable weights were 0"):
        surefit.train(data=feature_rows(60), model=Stopped(), output=str(tmp_path / "run"))


def test_a_run_at_a_rate_that_moves_nothing_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match="No weight has moved in the first 3 steps"):
        surefit.train(
            data=feature_rows(60), model=MeanPool(), lr=1e-14, output=str(tmp_path / "run")
        )


def test_weights_that_the_optimizer_does_not_hold_are_a_warning(tmp_path: Path) -> None:
    model = MeanPool()
    run = surefit.train(
        data=feature_rows(60),
        model=model,
        optimizer=torch.optim.SGD(model.head.parameters(), lr=0.1),
        output=str(tmp_path / "run"),
    )
    warnings = [event for event in run.history if event["event"] == "warning"]
    assert [event["code"] for event in warnings] == ["SF743"]
    assert "body.bias, body.weight" in warnings[0]["message"]
    assert "body.bias, body.weight" in (run.path / "report.html").read_text("utf-8")


@pytest.mark.parametrize("still_first", [False, True])
def test_weights_of_a_group_with_rate_zero_are_a_warning(still_first: bool, tmp_path: Path) -> None:
    model = MeanPool()
    groups = [{"params": model.head.parameters()}, {"params": model.body.parameters(), "lr": 0.0}]
    groups = groups[::-1] if still_first else groups
    run = surefit.train(
        data=feature_rows(60),
        model=model,
        optimizer=torch.optim.AdamW(groups, lr=0.01),
        output=str(tmp_path / "run"),
    )
    assert [e["code"] for e in run.history if e["event"] == "warning"] == ["SF743"]


def test_a_run_whose_weights_all_move_has_no_warning(tmp_path: Path) -> None:
    model = MeanPool()
    groups = [{"params": model.body.parameters(), "lr": 1e-4}, {"params": model.head.parameters()}]
    run = surefit.train(
        data=feature_rows(60),
        model=model,
        optimizer=torch.optim.AdamW(groups, lr=0.01),
        output=str(tmp_path / "run"),
    )
    assert [e for e in run.history if e["event"] == "warning"] == []


def test_a_run_that_blows_up_is_stopped_and_keeps_its_best_model(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(RunFailedError, match="The last good step is") as raised:
        surefit.train(
            data=feature_rows(200),
            model=BlowsUp(after=50),
            lr=1e-2,
            eval_every=5,
            epochs=4,
            output=str(folder),
        )
    run = open_run(folder)
    assert run.best_step is not None
    assert f"holds the model of step {run.best_step}, the best evaluation" in raised.value.message
    evaluated = surefit.evaluate(folder, feature_rows(30, seed=1), model=MeanPool())
    assert evaluated["accuracy"] > 0.6
    assert (folder / "report.html").is_file()


def test_labels_by_chance_leave_the_loss_at_their_entropy(tmp_path: Path) -> None:
    choose = random.Random(0)
    rows = [{**row, "label": choose.randrange(2)} for row in feature_rows(240)]
    run = surefit.train(
        data=rows, model=MeanPool(2), lr=1e-4, epochs=4, output=str(tmp_path / "run")
    )
    assert [e["code"] for e in run.history if e["event"] == "warning"] == ["SF744"]


def test_numbers_by_chance_leave_the_loss_at_their_variance(tmp_path: Path) -> None:
    choose = random.Random(0)
    rows = [
        {"size": choose.random(), "age": choose.random(), "price": choose.gauss(5, 1)}
        for _ in range(240)
    ]
    run = surefit.train(
        data=rows,
        model="tiny:mlp",
        task="regression",
        columns={"label": "price"},
        lr=1e-5,
        epochs=4,
        output=str(tmp_path / "run"),
    )
    assert [e["code"] for e in run.history if e["event"] == "warning"] == ["SF744"]


@pytest.mark.parametrize("seed", range(20))
def test_slow_and_noisy_losses_are_not_stuck(seed: int) -> None:
    choose = random.Random(seed)
    slow = [0.69 - 0.0003 * step + choose.gauss(0, 0.02) for step in range(200)]
    late = [
        max(0.69 - max(step - 60, 0) * 0.002, 0.3) + choose.gauss(0, 0.05) for step in range(120)
    ]
    falling = [7.5 - 0.01 * step + choose.gauss(0, 0.2) for step in range(150)]
    assert not is_stuck(slow, 0.69)
    assert not is_stuck(late, 0.69)
    assert not is_stuck(falling, 5.5)
    assert is_stuck([0.69 + choose.gauss(0, 0.02) for _ in range(400)], 0.69)


def test_a_spike_is_no_divergence() -> None:
    assert diverged_since([2.0] * 20 + [5000.0] * 4 + [2.0], 2.0) is None
    assert diverged_since([0.01, 0.5, 0.4, 0.6, 0.5, 0.7], None) is None
    assert diverged_since([0.7] * 20 + [40.0] * 5, 0.69) == 20


@pytest.mark.parametrize("lora_r", [0, 4])
def test_the_rate_test_leaves_everything_as_it_was(lora_r: int) -> None:
    plan = surefit.check(data=echo_rows(40), model="tiny:llama", lora_r=lora_r)
    assert plan.job is not None
    module = plan.job.pipeline.module
    before = {name: value.clone() for name, value in module.state_dict().items()}
    drawn, modes = torch.get_rng_state(), [part.training for part in module.modules()]
    trial = try_rate(plan.job, Rates(5.0, 0.01, 1.0), 60.0)
    assert trial is not None
    assert trial.losses[-1] != trial.losses[0]
    assert torch.equal(drawn, torch.get_rng_state())
    assert modes == [part.training for part in module.modules()]
    assert all(parameter.grad is None for parameter in module.parameters())
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_the_optimizer_passed_in_is_restored() -> None:
    model = MeanPool()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1000.0)
    plan = surefit.check(data=feature_rows(60), model=model, optimizer=optimizer)
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 1000.0
    assert [f.code for f in plan.findings if f.code.startswith("SF74")] in (["SF740"], ["SF741"])


def test_an_optimizer_with_a_state_is_not_tried() -> None:
    model = MeanPool()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.head.weight.sum().backward()
    optimizer.step()
    plan = surefit.check(data=feature_rows(60), model=model, optimizer=optimizer)
    assert "SF742" in [found.code for found in plan.findings]


def test_a_long_step_in_a_short_run_leaves_the_test_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surefit.plan.rate_test.FREE_SECONDS", 0.0)
    monkeypatch.setattr("surefit.plan.rate_test.MAX_SHARE", 0.01)
    plan = surefit.check(data=echo_rows(20), model="tiny:llama", epochs=1)
    assert "SF742" in [found.code for found in plan.findings]
