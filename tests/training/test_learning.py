"""What only a run shows: zero gradients, weights that do not move, a loss that blows up."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer

import surefit
from builders import MeanPool, echo_rows, feature_rows
from surefit.errors import RunFailedError
from surefit.models.optimizer import OptimizerSettings
from surefit.plan.rate_test import Rates, try_rate
from surefit.run.run_folder import open_run
from surefit.training import run as start
from surefit.training.engine import Engine, make_engine
from surefit.training.watches import diverged_since, is_stuck


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


@pytest.mark.parametrize(
    ("make", "rate", "said"),
    [
        (Stopped, 0.01, "gradients of all 4 trainable weights were 0"),
        (MeanPool, 1e-14, "No weight has moved in the first 3 steps"),
    ],
)
def test_a_run_that_learns_nothing_is_stopped(
    make: Any, rate: float, said: str, tmp_path: Path
) -> None:
    with pytest.raises(RunFailedError, match=said):
        surefit.train(data=feature_rows(60), model=make(), lr=rate, output=str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("groups", "rest"),
    [
        ((("head", 0.1),), True),  # the others are left out
        ((("head", 0.01), ("body", 0.0)), True),
        ((("body", 0.0), ("head", 0.01)), True),
        ((("body", 1e-4), ("head", 0.01)), False),
    ],
)
def test_weights_that_do_not_move_are_a_warning(groups: Any, rest: bool, tmp_path: Path) -> None:
    model = MeanPool()
    given = [{"params": getattr(model, name).parameters(), "lr": rate} for name, rate in groups]
    optimizer = torch.optim.AdamW(given, lr=0.01)
    run = surefit.train(
        data=feature_rows(60), model=model, optimizer=optimizer, output=str(tmp_path / "run")
    )
    warnings = [event for event in run.history if event["event"] == "warning"]
    assert [event["code"] for event in warnings] == ["SF743"] * rest
    if rest:
        assert "body.bias, body.weight" in warnings[0]["message"]
        assert "body.bias, body.weight" in (run.path / "report.html").read_text("utf-8")


def test_a_run_that_blows_up_is_stopped_and_keeps_its_best_model(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(RunFailedError, match="The last good step is") as raised:
        surefit.train(
            data=feature_rows(200),
            model=BlowsUp(after=41),
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


@pytest.mark.parametrize("seed", range(5))
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


@pytest.mark.parametrize(
    ("model", "given", "tried"),
    [("tiny:bert", {}, False), ("tiny:bert", {"lr": 1e-4}, True), (MeanPool, {}, True)],
)
def test_the_default_rate_of_a_transformers_model_is_not_tried(
    model: Any, given: dict[str, Any], tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def check_rate(job: Any, fit: Any, rates: Rates, prior: Any) -> Any:
        seen.append(rates.optimizer.lr)
        return fit, []

    monkeypatch.setattr("surefit.plan.rate_test.check_rate", check_rate)
    texts = [{"text": f"word {n} of {n % 7}", "label": n % 2} for n in range(20)]
    data = texts if isinstance(model, str) else feature_rows(20)
    surefit.check(data=data, model=model if isinstance(model, str) else model(), **given)
    assert bool(seen) is tried


@pytest.mark.rate_trial
@pytest.mark.parametrize("lora_r", [0, 4])
def test_the_rate_test_leaves_everything_as_it_was(lora_r: int) -> None:
    plan = surefit.check(data=echo_rows(40), model="tiny:llama", lora_r=lora_r)
    module = plan.job.pipeline.module
    before = {name: value.clone() for name, value in module.state_dict().items()}
    drawn, modes = torch.get_rng_state(), [part.training for part in module.modules()]
    losses = try_rate(plan.job, Rates(OptimizerSettings(5.0, 0.01), 1.0), 60.0)
    assert losses is not None
    assert losses[-1] != losses[0]
    assert torch.equal(drawn, torch.get_rng_state())
    assert modes == [part.training for part in module.modules()]
    assert all(parameter.grad is None for parameter in module.parameters())
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
    model = MeanPool()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1000.0)
    found = surefit.check(data=feature_rows(60), model=model, optimizer=optimizer).findings
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 1000.0
    assert [each.code for each in found if each.code.startswith("SF74")] in (["SF740"], ["SF741"])


def large_loss(outputs: Any, batch: Any) -> tuple[Any, int]:
    logits = getattr(outputs, "logits", outputs)
    losses = torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="sum")
    return 16 * losses, len(batch["labels"])


@pytest.fixture(params=[2.0**127])
def scaled(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Scale losses as fp16 does; float32 overflows with 2¹²⁷, as fp16 does with the usual scale."""

    def with_scaler(accelerator: Any, module: Any, optimizer: Any, *more: Any) -> Engine:
        engine = make_engine(accelerator, module, optimizer, *more)
        scaler = torch.amp.GradScaler("cpu", init_scale=request.param, growth_interval=10**6)
        accelerator.scaler = scaler
        accelerator.native_amp, accelerator.state._mixed_precision = True, "fp16"
        scaled = AcceleratedOptimizer(optimizer, scaler=accelerator.scaler)
        accelerator._optimizers = [scaled]
        return Engine(accelerator, engine.model, scaled, optimizer)

    monkeypatch.setattr(start, "make_engine", with_scaler)


def train(output: Path, *callbacks: Any, **options: Any) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    surefit.train(
        data=feature_rows(40),
        model=MeanPool(),
        batch_size=4,
        callbacks=[*callbacks, lambda event: events.append(dict(event))],
        output=output,
        **options,
    )
    return events


@pytest.mark.usefixtures("scaled")
def test_a_step_that_overflows_is_skipped_and_counted(tmp_path: Path) -> None:
    events = train(tmp_path / "run", loss_fn=large_loss, max_steps=12)
    skipped = [event["step"] for event in events if event.get("skipped")]
    assert skipped[0] == 1
    assert 0 < len(skipped) < 12
    assert all(event["loss"] == event["loss"] for event in events if event["event"] == "step")


@pytest.mark.usefixtures("scaled")
@pytest.mark.parametrize("scaled", [2.0**16], indirect=True)
def test_the_step_after_a_skipped_one_is_trained(tmp_path: Path) -> None:
    calls = []

    def odd_loss(outputs: Any, batch: Any) -> tuple[Any, int]:
        total, count = large_loss(outputs, batch)
        calls.append(torch.is_grad_enabled())
        return (total * float("nan") if started and sum(calls) == 3 else total), count

    started: list[bool] = []

    def begin(event: Any) -> None:
        if not started:
            calls.clear()
        started.append(True)

    asked = {"loss_fn": odd_loss, "max_steps": 6, "on_nonfinite": "skip"}
    events = train(tmp_path / "run", begin, **asked)
    steps = [event for event in events if event["event"] == "step"]
    assert len(steps) == 6
    assert [event["step"] for event in steps if event.get("skipped")] == [4]


@pytest.mark.usefixtures("scaled")
@pytest.mark.parametrize("scaled", [2.0**16], indirect=True)
def test_gradients_that_are_never_finite_end_the_run(tmp_path: Path) -> None:
    class Root(torch.autograd.Function):
        """Finite itself, with a gradient that is not."""

        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * (float("inf") if started else 1.0)

    started: list[bool] = []

    def loss(outputs: Any, batch: Any) -> tuple[Any, int]:
        total, count = large_loss(outputs, batch)
        return Root.apply(total), count

    with pytest.raises(RunFailedError, match="however small the scale"):
        train(tmp_path / "run", lambda event: started.append(True), loss_fn=loss, epochs=10)
