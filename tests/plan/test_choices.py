"""What a plan chooses: precision, and blocks of rows beyond memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import surefit
from builders import MeanPool, feature_rows, sentiment_rows, write_jsonl
from surefit.cli.summary_lines import plan_lines
from surefit.errors import UsageError
from surefit.memory.limit import find_device
from surefit.pipeline.open_pipeline import Choices
from surefit.plan import layout
from surefit.plan.layout import choose_block_rows
from surefit.plan.plan import check_emulated, planned_precision

OPTIONS: dict[str, Any] = {"epochs": 2, "batch_size": 2, "save_every": 10}


def module() -> MeanPool:
    torch.manual_seed(1)
    return MeanPool(dropout=0.3)


class CutError(Exception):
    """Stands for a power cut."""


def cut_at(step: int) -> Any:
    def callback(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == step:
            raise CutError

    return callback


@pytest.mark.slow
def test_a_run_in_blocks_is_resumed_as_if_it_was_never_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "block_rows", lambda *_: 8)
    whole = surefit.train(
        model=module(), data=feature_rows(150), output=str(tmp_path / "whole"), **OPTIONS
    )
    plan = json.loads((tmp_path / "whole" / "plan.json").read_text("utf-8"))
    assert plan["choices"]["order_block_rows"] == 8
    cut = {**OPTIONS, "data": feature_rows(150), "model": module()}
    with pytest.raises(CutError):
        surefit.train(output=str(tmp_path / "cut"), callbacks=[cut_at(83)], **cut)
    monkeypatch.undo()  # with more memory, other blocks would be chosen
    run = surefit.train(resume=tmp_path / "cut", **{**cut, "model": module()})

    def events(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in event.items() if k != "seconds"} for event in history]

    assert events(run.history) == events(whole.history)


def test_rows_that_fit_in_memory_are_shuffled_one_by_one() -> None:
    plan = surefit.check(model=module(), data=feature_rows(150), **OPTIONS)
    assert plan.job.batches.block_rows == 1
    assert plan.choices.order_block_rows is None
    assert "estimated_from_rows" not in plan.as_dict()["batches"]
    assert choose_block_rows(plan.job.train, Choices(rows="padded")) is None
    assert choose_block_rows(plan.job.train, Choices(order_block_rows=8)) == 8
    for stored in (0, 3, 512):
        with pytest.raises(UsageError, match="order_block_rows"):
            choose_block_rows(plan.job.train, Choices(order_block_rows=stored))


def test_choices_that_are_not_choices_are_refused(tmp_path: Path) -> None:
    run = surefit.train(model=module(), data=feature_rows(30), max_steps=1, output=str(tmp_path))
    plan = json.loads((tmp_path / "plan.json").read_text("utf-8"))
    assert run.choices.as_dict() == plan["choices"]
    plan["choices"]["order_block_rows"] = "8"
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    with pytest.raises(UsageError, match="order_block_rows: Input should be a valid integer"):
        surefit.predict(tmp_path, feature_rows(1), model=module())


def test_the_simulation_plans_with_the_real_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
    try:
        import simulate_scale
    finally:
        sys.path.pop(0)
    monkeypatch.setattr(simulate_scale, "MEMORY_BYTES", 10**6)
    layouts = [*simulate_scale.LAYOUTS]
    costs = dict(simulate_scale.simulate([80, 20_000], [2, 8], layouts, tmp_path))
    assert len(costs) == 8
    for case, cost in costs.items():
        assert (cost.block_rows == 1) == (case.rows == 80)
        assert cost.num_steps > 0
        assert 0 <= cost.imbalance < 0.9
        assert cost.plan_bytes > 0
    assert not [*tmp_path.iterdir()]
    assert simulate_scale.tables([*costs.items()]).count("| 20,000 |") == 4


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


def test_bf16_where_it_exists_is_no_warning() -> None:
    assert not [*check_emulated("bf16", "a100-80gb")]
    assert not [*check_emulated("bf16", None)]


def test_the_plan_has_and_shows_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "data": write_jsonl(tmp_path / "rows.jsonl", sentiment_rows(40)),
        "model": "tiny:bert",
        "precision": "fp32",
    }
    plan = surefit.check(**options)
    assert plan.as_dict()["precision"] == "fp32"
    assert dict(plan_lines(plan))["device"].endswith("precision fp32")


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
