"""Whether a run fits: peak memory predicted on the meta device, measured by one real step."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import surefit
import surefit.training.run
from builders import (
    MeanPool,
    allocated_peak,
    assert_same_weights,
    echo_rows,
    events_of,
    feature_rows,
    mostly_slow,
    sentiment_rows,
    write_jsonl,
)
from surefit.cli import run as command
from surefit.config import make_config
from surefit.gigabytes import GB
from surefit.memory.limit import DEVICE_CONTEXT_BYTES, Limit
from surefit.memory.predict_peak import predict
from surefit.plan.plan import Plan
from surefit.training.measured_step import needs_measuring

LONG_ROWS = [{"prompt": "red blue " * 120 + str(n), "completion": "cat"} for n in range(80)]


def check(**options: Any) -> Plan:
    return surefit.check(**{"model": "tiny:llama", "data": LONG_ROWS, "task": "sft", **options})


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process always uses the same memory, whatever the tests before have left in it."""
    monkeypatch.setattr("surefit.memory.limit.anonymous_bytes", lambda: 400_000_000)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch computes with one thread: attention has a buffer for each of them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tensors(plan: Plan) -> int:
    """The predicted peak without the process and the allocator."""
    assert plan.fit is not None
    return sum(
        plan.fit.parts[name] for name in ("weights", "gradients", "optimizer", "activations")
    )


def counted(plan: Plan) -> int:
    """What torch's allocator was asked for in a real step on the largest batch."""
    assert plan.job is not None
    pipeline, module = plan.job.pipeline, plan.job.pipeline.module
    batch = pipeline.batch(plan.job.train, plan.job.batches.worst_rows())
    optimizer = plan.job.optimizer.make(module)
    module.train()

    def step() -> None:
        total, count = pipeline.loss(pipeline.outputs(batch), batch)
        (total / count).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    columns = [value for value in batch.values() if isinstance(value, torch.Tensor)]
    return allocated_peak(step, module, optimizer, columns)


@pytest.mark.parametrize(
    ("model", "task", "rows", "more"),
    [
        ("tiny:llama", "sft", echo_rows(40), {}),
        ("tiny:llama", "sft", echo_rows(40), {"checkpointing": True}),
        ("tiny:bert", "text-classification", sentiment_rows(40), {}),
        ("tiny:bert", "feature-classification", feature_rows(40), {}),
    ],
)
@pytest.mark.usefixtures("one_thread")
def test_the_prediction_is_what_the_allocator_counts(
    model: str, task: str, rows: Any, more: dict[str, Any]
) -> None:
    plan = surefit.check(model=model, task=task, data=rows, **more)
    assert tensors(plan) == pytest.approx(counted(plan), rel=0.03)
    if more:
        assert tensors(check(**more)) < 0.8 * tensors(check())


def small_limit(share: float, **options: Any) -> float:
    """Gigabytes that leave room for a share of the activations of the run."""
    fit = check(**options).fit
    assert fit is not None
    assert fit.peak_bytes is not None
    return (fit.peak_bytes - (1 - share) * fit.parts["activations"]) / GB


@pytest.mark.usefixtures("steady")
def test_what_does_not_fit_is_refused_with_what_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", LONG_ROWS)
    options = {"batch_size": 32, "grad_accum": 2}
    limit = small_limit(0.5, **options)
    arguments = ["check", "--data", str(data), "--model", "tiny:llama", "--task", "sft", "--json"]
    arguments += ["--batch-size", "32", "--grad-accum", "2", "--max-memory-gb", str(limit)]
    assert command(arguments) == 1
    plan = json.loads(capsys.readouterr().out)
    assert not plan["ok"]
    assert plan["memory"]["fits"] is False
    assert plan["memory"]["limit_bytes"] == round(limit * GB)
    (refusal,) = [found for found in plan["findings"] if found["code"] == "SF400"]
    advice = plan["memory"]["advice"]
    assert advice[0]["fits"]
    assert "batch_size" in advice[0]["set"]
    assert {"batch_size", "checkpointing", "max_seq_length"} <= {
        k for a in advice for k in a["set"]
    }
    assert f"batch_size={advice[0]['set']['batch_size']}" in refusal["fix"]
    for option in advice:
        if option["fits"] and not any("lora" in key for key in option["set"]):
            again = check(**{**options, **option["set"]}, max_memory_gb=limit)
            assert again.ok, option


@pytest.mark.slow
@pytest.mark.usefixtures("steady")
def test_auto_keeps_the_effective_batch_and_is_settled_for_good(tmp_path: Path) -> None:
    limit = small_limit(0.4, batch_size=32, padding_free="off")
    plan = check(batch_size="auto", grad_accum=4, max_memory_gb=limit, padding_free="off")
    fixed = check(batch_size=32, padding_free="off")
    assert plan.ok
    assert plan.config.micro_batch_rows < 32
    assert plan.config.micro_batch_rows * plan.config.grad_accum == 32
    assert plan.job is not None
    assert fixed.job is not None
    assert plan.job.num_steps == fixed.job.num_steps
    for step in range(plan.job.batches.steps_per_epoch):
        rows = [set(p.batches.step_rows(0, step).tolist()) for p in (plan.job, fixed.job)]
        assert rows[0] == rows[1]
    data = write_jsonl(tmp_path / "rows.jsonl", echo_rows(20))
    options = {"data": str(data), "model": "tiny:llama", "task": "sft", "batch_size": "auto"}
    run = surefit.train(**options, max_steps=2, output=str(tmp_path / "run"))
    assert run.config.batch_size == 8


class Noisy(MeanPool):
    """Batch statistics, dropout, and random numbers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.3)

    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        noise = 1.0
        if self.training:
            noise += 0.1 * random.random() + 0.1 * np.random.rand()
        steps = self.norm(inputs_embeds.transpose(1, 2)).transpose(1, 2)
        return super().forward(self.drop(steps) * noise, attention_mask)


@pytest.mark.parametrize("make", [Noisy, lambda: "tiny:bert"])
def test_the_proof_leaves_no_trace(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proved: list[Any] = []
    real = surefit.training.run.measure_step

    def train(name: str, prove: Any) -> Any:
        monkeypatch.setattr(surefit.training.run, "measure_step", prove)
        monkeypatch.setattr(surefit.training.run, "needs_measuring", lambda plan: True)
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        data = feature_rows(44)
        return surefit.train(
            model=make(), data=data, max_steps=6, batch_size=4, output=str(tmp_path / name)
        )

    def noted(*args: Any, **kwargs: Any) -> Any:
        proved.append(real(*args, **kwargs))
        return proved[-1]

    with_proof = train("with", noted)
    without = train("without", lambda *args, **kwargs: None)
    assert proved[0].measured_bytes > 0
    assert proved[0].total_seconds > 0
    assert events_of(with_proof) == events_of(without)
    assert_same_weights(with_proof.model, without.model)


@pytest.mark.parametrize(
    ("model", "given", "measured"),
    [
        ("tiny:bert", {}, False),
        ("tiny:bert", {"max_memory_gb": 8}, True),
        ("tiny:bert", {"fit": "measured"}, True),
        (MeanPool(), {}, True),
    ],
)
def test_a_step_is_measured_where_memory_may_be_short(
    model: Any, given: dict[str, Any], measured: bool
) -> None:
    plan = surefit.check(data=feature_rows(30), model=model, **given)
    assert needs_measuring(plan) is measured
    assert plan.fit is not None
    short = replace(plan.fit, limit=replace(plan.fit.limit, bytes=plan.fit.peak_bytes))
    assert needs_measuring(replace(plan, fit=short))


class RunsOut(MeanPool):
    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        if self.training and not inputs_embeds.is_meta:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to …")
        return super().forward(inputs_embeds, attention_mask)


def test_running_out_of_memory_ends_before_the_first_step(tmp_path: Path) -> None:
    output = tmp_path / "run"
    with pytest.raises(surefit.FindingError) as caught:
        surefit.train(model=RunsOut(), data=feature_rows(30), output=str(output))
    assert [found.code for found in caught.value.findings] == ["SF400"]
    assert not output.exists()


class NeedsNumbers(MeanPool):
    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        scale = float(inputs_embeds.detach().numpy().max() > 0)
        return super().forward(inputs_embeds, attention_mask) * (1 + scale)


def test_a_model_that_cannot_be_traced_is_measured_all_the_same() -> None:
    plan = surefit.check(model=NeedsNumbers(), data=feature_rows(30), fit="measured")
    assert plan.ok
    (note,) = (note for note in plan.notes if "are not predicted" in note)
    assert "Error" not in note
    assert "measures the largest micro-batch" in note
    memory = plan.as_dict()["memory"]
    assert memory["predicted_peak_bytes"] is None
    assert memory["measured_peak_bytes"] > 0
    assert memory["fits"]


def test_wrong_batch_sizes_are_refused() -> None:
    with pytest.raises(surefit.UsageError, match="max_tokens"):
        check(batch_size="auto", max_tokens=64)
    for size in ("many", 0, 1.5, True):
        with pytest.raises(surefit.UsageError, match="batch_size"):
            make_config({"batch_size": size})


def test_the_context_of_a_device_is_counted_only_where_the_device_is_not_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = check().job
    assert job is not None
    planned = predict(job, Limit(8 * GB, "device_memory_gb", on_device=True))
    here = predict(job, Limit(8 * GB, "free on the CUDA device", on_device=True))
    assert planned.parts["process"] == DEVICE_CONTEXT_BYTES
    assert here.parts["process"] == 0
    assert planned.peak_bytes is not None
    assert here.peak_bytes == planned.peak_bytes - DEVICE_CONTEXT_BYTES
    assert planned.step_seconds is None
    assert here.step_seconds is not None

    def full(dtype: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("surefit.memory.predict_peak.measure_machine", full)
    again = predict(job, Limit(GB // 100, "free on the CUDA device", on_device=True))
    assert (again.fits, again.step_seconds) == (False, None)


@pytest.mark.parametrize(
    ("model", "options"),
    mostly_slow(
        [
            ("tiny:llama", {"batch_size": 1}),
            ("module", {}),
            ("tiny:bert", {"checkpointing": True, "batch_size": 1}),
            ("tiny:llama", {"lora": {"r": 4}, "checkpointing": True, "max_tokens": 64}),
        ],
        every=4,
    ),
    ids=str,
)
def test_advice_names_no_empty_and_no_repeated_option(model: Any, options: dict[str, Any]) -> None:
    """Where no change is enough, the nearest is named."""
    data = echo_rows(20) if model == "tiny:llama" else feature_rows(20)
    plan = refused(MeanPool() if model == "module" else model, data, **options)
    settings = [option["set"] for option in plan.fit.advice]  # type: ignore[union-attr]
    assert all(settings)
    assert all(settings.count(each) == 1 for each in settings)
    config = plan.config
    current = {
        "batch_size": config.batch_size,
        "grad_accum": config.grad_accum,
        "checkpointing": config.checkpointing,
        "lora.r": config.lora.r,
    }
    assert all({**current, **each} != current for each in settings)
    assert "No option that was tried fits" in fix_of(plan) or not settings
    if model == "tiny:llama" and not config.lora.r:
        assert {"checkpointing": True, "lora.r": 16} in settings
    unchanged = refused(MeanPool(), feature_rows(20), batch_size=1)  # nothing could be smaller
    assert unchanged.fit is not None
    assert unchanged.fit.advice == ()
    assert fix_of(unchanged).startswith("Use a smaller model or batch size")


def refused(model: Any, data: Any, **options: Any) -> Plan:
    """A plan that no option makes fit."""
    return surefit.check(model=model, data=data, max_memory_gb=0.05, **options)


def fix_of(plan: Plan) -> str:
    (found,) = [found for found in plan.findings if found.code == "SF400"]
    return found.fix
