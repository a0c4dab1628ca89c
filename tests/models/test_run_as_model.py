"""A run's folder as `--model`: training continues from its weights, also for text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import surefit
from builders import sentiment_rows


@pytest.mark.parametrize("inside", ["", "model"])
def test_text_run_goes_on_from_its_weights(tmp_path: Path, inside: str) -> None:
    run = surefit.train(
        data=sentiment_rows(40), model="tiny:bert", max_steps=2, output=str(tmp_path / "run")
    )
    plan = surefit.check(data=sentiment_rows(40, seed=1), model=str(tmp_path / "run" / inside))
    assert plan.ok
    assert plan.job is not None
    before, after = run.model.state_dict(), plan.job.pipeline.module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert plan.model.lr == 2e-5  # of a trained model
