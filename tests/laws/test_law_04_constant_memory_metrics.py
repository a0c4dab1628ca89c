"""Law 4: a metric accumulates in constant memory."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import surefit
from builders import MeanPool, feature_rows
from surefit.pipeline.evaluation import EvaluationSettings


def live_numbers() -> int:
    """Elements of all tensors that are alive."""
    gc.collect()
    return sum(each.numel() for each in gc.get_objects() if type(each) is torch.Tensor)


def test_tensors_alive_do_not_grow_with_the_rows_evaluated() -> None:
    plan = surefit.check(data=feature_rows(1200), model=MeanPool(), eval_share=0.5)
    assert plan.job is not None
    job, alive = plan.job, []

    def watch(stage: str, done: int, total: int) -> None:
        if done in (2, total - 2):
            alive.append(live_numbers())

    settings = EvaluationSettings(batch_size=4)
    metrics = job.pipeline.evaluate(job.validation, settings, progress=watch).metrics
    early, late = alive
    assert late <= early + 200  # a batch or two; 580 further rows would add thousands
    assert set(metrics) == {"loss", "accuracy", "macro_f1", "confusion"}
    assert sum(map(sum, metrics["confusion"])) == 600


def test_figures_are_those_of_all_rows_at_once() -> None:
    plan = surefit.check(data=feature_rows(300), model=MeanPool(), eval_share=0.5)
    assert plan.job is not None
    job = plan.job

    def measure(batch_size: int) -> dict[str, Any]:
        return job.pipeline.evaluate(job.validation, EvaluationSettings(batch_size)).metrics

    whole, pieces = measure(150), measure(7)
    assert whole["confusion"] == pieces["confusion"]
    assert pieces["loss"] == pytest.approx(whole["loss"], rel=1e-5)  # the law's float32
