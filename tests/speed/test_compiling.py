"""Generation runs uncompiled, so that training keeps its few graphs; Dynamo's counts say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import surefit
from builders import echo_rows, write_jsonl
from surefit.data.open_data import open_table
from surefit.pipeline.evaluation import EvaluationSettings
from surefit.pipeline.pipeline import Job
from surefit.speed.compiling import compile_layers
from surefit.training.measured_step import _decode_seconds


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A small Llama whose layers are compiled by Dynamo, without a compiler behind it."""
    data = str(write_jsonl(tmp_path / "rows.jsonl", echo_rows(40)))
    plan: Any = surefit.check(data=data, model="tiny:llama", batch_size=16, padding_free="off")
    compiled = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda layer, **options: compiled(layer, backend="eager", **options)
    )
    torch.compiler.reset()
    compile_layers(plan.job.pipeline.module)
    yield plan.job
    torch.compiler.reset()


def num_graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def backward(pipeline: Any, batch: Any) -> None:
    pipeline.module.train()
    pipeline.loss(pipeline.outputs(batch), batch)[0].backward()


def test_generating_compiles_nothing(job: Job, tmp_path: Path) -> None:
    pipeline, before = job.pipeline, num_graphs()
    batch = job.batch(job.batches.worst_rows(1))
    backward(pipeline, batch)
    assert num_graphs() - before == 1  # that of training, so that the count is known to count
    _decode_seconds(job, batch)
    table = open_table(tmp_path / "rows.jsonl")
    answers = [*pipeline.predict(table, max_new_tokens=3)]
    assert all(isinstance(each["prediction"], str) for each in answers)
    assert num_graphs() - before == 1
    settings = EvaluationSettings(4, generate_rows=8, max_new_tokens=3, max_batches=2)
    assert pipeline.evaluate(job.validation, settings).samples
    backward(pipeline, batch)
    assert 2 <= num_graphs() - before <= 4  # the metrics are computed by compiled layers
