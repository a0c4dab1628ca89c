"""Steps that overflow in fp16: skipped by the scaler, counted and reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer

import surefit
from builders import MeanPool, feature_rows
from surefit.training import start
from surefit.training.engine import Engine, make_engine


def large_loss(outputs: Any, batch: Any) -> tuple[Any, int]:
    logits = getattr(outputs, "logits", outputs)
    losses = torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="sum")
    return 16 * losses, len(batch["labels"])


def test_a_step_that_overflows_is_skipped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_scaler(accelerator: Any, module: Any, optimizer: Any, *more: Any) -> Engine:
        engine = make_engine(accelerator, module, optimizer, *more)
        # float32 overflows with this scale, as fp16 does with the usual one
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=10**6)
        accelerator.native_amp, accelerator.state._mixed_precision = True, "fp16"
        scaled = AcceleratedOptimizer(optimizer, scaler=accelerator.scaler)
        accelerator._optimizers = [scaled]
        return Engine(accelerator, engine.model, scaled, optimizer)

    monkeypatch.setattr(start, "make_engine", with_scaler)
    events: list[dict[str, Any]] = []
    surefit.train(
        data=feature_rows(40),
        model=MeanPool(),
        loss_fn=large_loss,
        max_steps=12,
        batch_size=4,
        callbacks=[lambda event: events.append(dict(event))],
        output=tmp_path / "run",
    )
    skipped = [event["step"] for event in events if event.get("skipped")]
    assert skipped[0] == 1
    assert 0 < len(skipped) < 12
    assert all(event["loss"] == event["loss"] for event in events if event["event"] == "step")
