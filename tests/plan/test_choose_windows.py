"""SF504, SF505: large data is planned, trained and resumed in windows; small data as ever."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import surefit
from builders import MeanPool, feature_rows
from surefit.batches import window_order
from surefit.batches.order import Batches
from surefit.errors import UsageError
from surefit.plan.choose_windows import check_shares, choose_order_windows

OPTIONS: dict[str, Any] = {"epochs": 2, "batch_size": 2, "save_every": 10}
SIZES = {"rows": 64, "shard_rows": 8}


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """All data is large, and windows are small."""
    monkeypatch.setattr(window_order, "LARGE_ROWS", 100)
    monkeypatch.setattr(window_order, "WINDOW_ROWS", SIZES["rows"])
    monkeypatch.setattr(window_order, "SHARD_ROWS", SIZES["shard_rows"])


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
def test_a_run_in_windows_is_resumed_as_if_it_was_never_cut(
    large: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = surefit.train(
        model=module(), data=feature_rows(150), output=str(tmp_path / "whole"), **OPTIONS
    )
    plan = json.loads((tmp_path / "whole" / "plan.json").read_text("utf-8"))
    assert plan["choices"]["order_windows"] == SIZES
    assert "SF504" in {found["code"] for found in plan["findings"]}
    assert 0 < plan["batches"]["estimated_from_rows"] <= 150
    cut = {**OPTIONS, "data": feature_rows(150), "model": module()}
    with pytest.raises(CutError):
        surefit.train(output=str(tmp_path / "cut"), callbacks=[cut_at(83)], **cut)
    # sizes that another version of these constants would choose are not those of the run
    monkeypatch.setattr(window_order, "LARGE_ROWS", 10**6)
    run = surefit.train(resume=tmp_path / "cut", **{**cut, "model": module()})

    def events(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in event.items() if k != "seconds"} for event in history]

    assert events(run.history) == events(whole.history)
    longer = surefit.train(resume=tmp_path / "cut", **{**cut, "model": module(), "epochs": 3})
    steps = [event["step"] for event in longer.history if event["event"] == "step"]
    assert len(steps) == 3 * (len([e for e in whole.history if e["event"] == "step"]) // 2)


def test_small_data_is_shuffled_at_once() -> None:
    plan = surefit.check(model=module(), data=feature_rows(150), **OPTIONS)
    assert plan.job is not None
    assert plan.job.batches.windows is None
    assert "order_windows" not in plan.choices
    assert "estimated_from_rows" not in plan.as_dict()["batches"]


def test_a_run_without_windows_never_gets_them(large: None) -> None:
    lengths = np.full(1000, 5, np.int32)
    begun_before: dict[str, Any] = {"rows": "padded", "compile": {"compiled": False}}
    assert choose_order_windows(lengths, begun_before) == ((None, {}), [])
    (windows, sizes), found = choose_order_windows(lengths, {})
    assert windows is not None
    assert sizes == SIZES
    assert [f.code for f in found] == ["SF504"]


@pytest.mark.parametrize("stored", [{"rows": 64}, {"rows": 0, "shard_rows": 8}, [64, 8], "64"])
def test_sizes_that_no_plan_has_are_refused(stored: Any) -> None:
    with pytest.raises(UsageError, match="order_windows"):
        choose_order_windows(np.full(1000, 5, np.int32), {"order_windows": stored})


def test_waiting_processes_are_reported() -> None:
    lengths = np.array([500, *[10] * 63] * 20, np.int32)
    uneven = Batches(lengths, 0, 4, num_processes=16)
    (found,) = check_shares(uneven)
    assert found.code == "SF505"
    assert "16 processes" in found.message
    even = Batches(np.full(1280, 10, np.int32), 0, 4, num_processes=16)
    assert not [*check_shares(even)]
    assert not [*check_shares(replace(uneven, num_processes=1))]


def test_the_simulation_plans_with_the_real_code(large: None, tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
    try:
        import simulate_scale
    finally:
        sys.path.pop(0)
    layouts = [*simulate_scale.LAYOUTS]
    costs = dict(simulate_scale.simulate([80, 20_000], [2, 8], layouts, tmp_path))
    assert len(costs) == 8
    for case, cost in costs.items():
        assert (cost.window_rows is None) == (case.rows == 80)
        assert cost.num_steps > 0
        assert 0 <= cost.imbalance < 0.9
        assert cost.plan_bytes > 0
    assert not [*tmp_path.iterdir()]
    assert simulate_scale.tables([*costs.items()]).count("| 20,000 |") == 4
