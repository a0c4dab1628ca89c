"""Generation runs uncompiled, so that training keeps its few graphs; Dynamo's counts say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import surefit
from surefit.data.open_data import open_table
from surefit.kernels.compiling import compile_layers, not_compiled, repeated_layers
from surefit.memory.prove import _decode_seconds
from surefit.pipeline.evaluation import EvaluationSettings
from surefit.pipeline.job import Job
from surefit.selftest.small_data import write_instructions
from surefit.selftest.small_runs import settings_for
from surefit.selftest.step_costs import MOST_GRAPHS


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A small Llama whose layers are compiled by Dynamo, without a compiler behind it."""
    (tmp_path / "few").mkdir()
    data = str(write_instructions(tmp_path / "few", 40))
    plan: Any = surefit.check(**settings_for(tmp_path, data=data, padding_free="off"))
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
    table = open_table(tmp_path / "few" / "instructions.jsonl")
    answers = [*pipeline.predict(table, max_new_tokens=3)]
    assert all(isinstance(each["prediction"], str) for each in answers)
    assert num_graphs() - before == 1
    settings = EvaluationSettings(4, generate_rows=8, max_new_tokens=3, max_batches=2)
    assert pipeline.evaluate(job.validation, settings).samples
    backward(pipeline, batch)
    assert 2 <= num_graphs() - before <= MOST_GRAPHS  # the metrics are computed by compiled layers


def test_layers_are_compiled_again_after_the_block() -> None:
    module = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    compile_layers(module)
    layers = repeated_layers(module)
    compiled = [layer._compiled_call_impl for layer in layers]
    assert None not in compiled
    with not_compiled(module):
        assert [layer._compiled_call_impl for layer in layers] == [None, None]
    assert [layer._compiled_call_impl for layer in layers] == compiled
