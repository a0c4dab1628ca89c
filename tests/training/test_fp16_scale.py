"""Steps that overflow in fp16: skipped by the scaler, counted and reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer

import surefit
from builders import MeanPool, feature_rows
from surefit.errors import RunFailedError
from surefit.training import start
from surefit.training.engine import Engine, make_engine


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
