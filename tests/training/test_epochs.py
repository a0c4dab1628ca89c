"""A run's epochs: average losses and time, from its events."""

from __future__ import annotations

from pathlib import Path

import pytest

import surefit
from builders import MeanPool, feature_rows


def test_epochs_have_losses_and_time(tmp_path: Path) -> None:
    run = surefit.train(
        data=feature_rows(60),
        model=MeanPool(),
        epochs=3,
        eval_at_start=True,
        output=str(tmp_path / "run"),
    )
    assert [epoch["epoch"] for epoch in run.epochs] == [1, 2, 3]
    steps = [event for event in run.history if event["event"] == "step" and event["epoch"] == 2]
    evals = [event for event in run.history if event["event"] == "eval" and event["epoch"] == 2]
    second = run.epochs[1]
    assert second["train_loss"] == pytest.approx(sum(e["loss"] for e in steps) / len(steps))
    assert second["seconds"] == pytest.approx(sum(e["seconds"] for e in steps))
    assert second["eval_loss"] == evals[-1]["metrics"]["loss"]
    alone = surefit.train(
        data=feature_rows(60),
        model=MeanPool(),
        epochs=1,
        eval_share=0.0,
        output=str(tmp_path / "alone"),
    )
    assert [epoch["eval_loss"] for epoch in alone.epochs] == [None]
