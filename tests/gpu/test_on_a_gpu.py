"""What only a CUDA device can show: `pytest -m gpu`. Without one these tests fail, not skip."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import surefit
from builders import echo_rows
from surefit.cli.selftest import CHECKS, run_check
from surefit.models.call import compute_losses
from surefit.training.engine import make_accelerator, make_engine

pytestmark = pytest.mark.gpu
MOST_GRAPHS = 4
"""Compiled graphs of one layer type with varying lengths: a first one, and dynamic ones."""


@pytest.fixture(autouse=True)
def device() -> str:
    assert torch.cuda.is_available(), "pytest -m gpu needs a CUDA device, and there is none"
    return "cuda"


@pytest.mark.parametrize("name", CHECKS)
def test_selftest(name: str, device: str) -> None:
    outcome = run_check(name, device)
    if outcome["status"] == "skipped":
        pytest.skip(outcome["message"])
    assert outcome["status"] == "passed", outcome


def test_a_step_does_not_wait_for_the_device() -> None:
    plan: Any = surefit.check(data=echo_rows(60), model="tiny:llama")
    job, module = plan.job, plan.job.pipeline.module
    optimizer = job.optimizer.make(module)
    accelerator = make_accelerator(plan.config.precision)
    engine = make_engine(accelerator, module, optimizer, frozen=job.frozen_dtype)
    batch = job.batch(job.batches.worst_rows(job.epochs))

    def step() -> None:
        pipeline = job.pipeline
        total, *_ = compute_losses(pipeline.call, pipeline.loss, engine.model.train(), batch)
        accelerator.backward(total)

    step()  # loads kernels
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        step()
    torch.cuda.set_sync_debug_mode("default")
    assert [f"{w.filename}:{w.lineno}" for w in seen if "synchroniz" in str(w.message)] == []


def test_rows_of_varying_length_are_compiled_a_few_times(tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    options: dict[str, Any] = {"compile": "on", "padding_free": "off", "max_steps": 40, "lr": 3e-3}
    run: Any = surefit.train(
        data=echo_rows(400), model="tiny:llama", output=str(tmp_path / "run"), **options
    )
    losses = [event["loss"] for event in run.history if event["event"] == "step"]
    assert 0 < counters["stats"]["unique_graphs"] <= MOST_GRAPHS
    assert losses[-1] < losses[0]
