"""What a plan chooses: precision, and blocks of rows beyond memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import surefit
from builders import events_of, feature_rows, same_pool, stop_at
from surefit.checks.machine import check_emulated, planned_precision
from surefit.cli.summary_lines import plan_blocks
from surefit.errors import UsageError
from surefit.memory.limit import find_device
from surefit.pipeline.open_pipeline import Choices
from surefit.plan import layout
from surefit.plan.layout import choose_block_rows

OPTIONS: dict[str, Any] = {"epochs": 2, "batch_size": 2, "save_every": 10}


@pytest.mark.slow
def test_a_run_in_blocks_is_resumed_as_if_it_was_never_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "block_rows", lambda *_: 8)
    whole = surefit.train(
        model=same_pool(0.3), data=feature_rows(150), output=str(tmp_path / "whole"), **OPTIONS
    )
    plan = json.loads((tmp_path / "whole" / "plan.json").read_text("utf-8"))
    assert plan["choices"]["order_block_rows"] == 8
    cut = {**OPTIONS, "data": feature_rows(150), "model": same_pool(0.3)}
    with pytest.raises(KeyboardInterrupt):
        surefit.train(output=str(tmp_path / "cut"), callbacks=[stop_at(83)], **cut)
    monkeypatch.undo()  # with more memory, other blocks would be chosen
    run = surefit.train(resume=tmp_path / "cut", **{**cut, "model": same_pool(0.3)})
    assert events_of(run) == events_of(whole)


def test_rows_that_fit_in_memory_are_shuffled_one_by_one() -> None:
    plan = surefit.check(model=same_pool(0.3), data=feature_rows(150), precision="fp32", **OPTIONS)
    assert plan.as_dict()["precision"] == "fp32"
    assert dict(dict(plan_blocks(plan))["Model"])["device"].endswith("precision fp32")
    assert plan.job.batches.block_rows == 1
    assert plan.choices.order_block_rows is None
    assert "estimated_from_rows" not in plan.as_dict()["batches"]
    assert choose_block_rows(plan.job.train, Choices(rows="padded")) is None
    assert choose_block_rows(plan.job.train, Choices(order_block_rows=8)) == 8
    for stored in (0, 3, 512):
        with pytest.raises(UsageError, match="order_block_rows"):
            choose_block_rows(plan.job.train, Choices(order_block_rows=stored))


def test_choices_that_are_not_choices_are_refused(tmp_path: Path) -> None:
    run = surefit.train(
        model=same_pool(0.3), data=feature_rows(30), max_steps=1, output=str(tmp_path)
    )
    plan = json.loads((tmp_path / "plan.json").read_text("utf-8"))
    assert run.choices.as_dict() == plan["choices"]
    plan["choices"]["order_block_rows"] = "8"
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    with pytest.raises(UsageError, match="order_block_rows: Input should be a valid integer"):
        surefit.predict(tmp_path, feature_rows(1), model=same_pool(0.3))


@pytest.mark.parametrize(
    ("precision", "device", "expected"),
    [
        ("auto", "v100-32gb", "fp16"),
        ("auto", "t4-16gb", "fp16"),
        ("auto", "a100-80gb", "bf16"),
        ("fp32", "a100-80gb", "fp32"),
        ("bf16", "t4-16gb", "bf16"),
    ],
)
def test_the_planned_device_decides(precision: str, device: str, expected: str) -> None:
    assert planned_precision(precision, find_device(device).memory_gb, device) == expected
    emulated = [found.code for found in check_emulated(precision, device)]
    assert emulated == (["SF410"] if precision == "bf16" else [])
    assert not [*check_emulated("bf16", "a100-80gb")]
    assert not [*check_emulated("bf16", None)]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("t4", "Did you mean t4-16gb?"),
        ("v100", "Did you mean v100-16gb or v100-32gb?"),
        ("A100", "Did you mean a100-40gb or a100-80gb?"),
        ("a100-80g", "Did you mean a100-80gb?"),
        ("mps", "leave it out"),
        ("cuda", "leave it out"),
        ("abacus", "Known are"),
    ],
)
def test_unknown_devices_say_what_to_do(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_device(name)
    assert hint in caught.value.fix
    assert ("Did you mean" in caught.value.fix) == ("Did you mean" in hint)


@pytest.mark.parametrize(
    ("count", "options", "rows"),
    [
        (800, {}, 8),
        (3600, {}, 32),
        (3600, {"batch_size": "auto"}, 8),
        (3600, {"batch_size": 16}, 16),
        (3600, {"grad_accum": 2}, 8),
        (3600, {"max_steps": 50}, 8),
    ],
)
def test_rows_of_one_value_have_larger_batches_by_default(
    count: int, options: dict[str, Any], rows: int
) -> None:
    x = np.random.default_rng(0).normal(size=(count, 3)).astype("float32")
    data = {"x": x, "label": (x[:, 0] > 0).astype(int)}
    plan = surefit.check(data=data, model=nn.Linear(3, 2), quiet=True, **options)
    assert plan.config.batch_size == rows
    assert plan.job.batches.batch_size * plan.job.batches.grad_accum == rows * options.get(
        "grad_accum", 1
    )
