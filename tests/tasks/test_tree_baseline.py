"""Boosted trees beside the result of a table: their figures, their bounds, the verdict."""

from __future__ import annotations

import random
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import r2_score

import surefit
from surefit.inputs.table.table_columns import ColumnMatrix, feature_rows
from surefit.plan.plan import Plan
from surefit.targets import baselines
from surefit.targets.baselines import TREES, judge_by_trees


def product_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The target is the product of two numbers, which no line predicts, by colour."""
    draw = random.Random(seed)
    rows = []
    for n in range(count):
        a, b, colour = draw.gauss(0, 1), draw.gauss(0, 1), draw.choice(["red", "blue"])
        target = 10 * a * b + (3 if colour == "red" else 0)
        rows.append({"a": a if n % 9 else None, "b": b, "colour": colour, "price": target})
    return rows


OPTIONS: dict[str, Any] = {"task": "regression", "columns": {"label": "price"}}


def check(**more: Any) -> Plan:
    rows = {"data": product_rows(260), "eval_data": product_rows(80, seed=1)}
    return surefit.check(**{**rows, "model": "tiny:mlp", **OPTIONS, **more})


@pytest.mark.slow
def test_figures_are_those_of_scikit_learn(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 1))
    run = surefit.train(
        data=product_rows(260),
        eval_data=product_rows(80, seed=1),
        model=model,
        epochs=1,
        output=str(tmp_path / "run"),
        **OPTIONS,
    )
    found = run.plan["baselines"][TREES]
    assert {"r2", "rmse", "mae"} <= found.keys()
    plan = check()
    assert plan.job is not None
    train, judged = plan.job.train, plan.job.validation
    matrix = ColumnMatrix.of(plan.job.pipeline.encoder)
    assert matrix.categories == [2]
    x, y = (matrix.read(feature_rows(store, slice(None))) for store in (train, judged))
    assert np.isnan(x[:, 0]).sum() == 29
    trees = HistGradientBoostingRegressor(
        max_iter=200, categorical_features=[2], random_state=0, early_stopping=True
    ).fit(x, train.values("labels"))
    expected = r2_score(judged.values("labels"), trees.predict(y))
    assert found["r2"] == pytest.approx(expected, abs=1e-9)
    assert plan.baselines[TREES] == found  # from the cache
    (warning,) = [event for event in run.history if event["event"] == "warning"]
    assert warning["code"] == "SF748"
    reached = f"r2 {found['r2']:.4g}, rmse {found['rmse']:.4g} on the same 80 validation rows"
    assert reached in warning["message"]
    page = run.report_path.read_text()
    assert TREES in page
    assert "SF748" in page


def test_without_scikit_learn_a_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(baselines, "version", missing)
    plan = check()
    assert plan.ok
    assert plan.baselines[TREES] == {"note": baselines.MISSING}
    assert "pip install 'surefit[tables]'" in baselines.MISSING
    assert TREES not in check(table={"trees": False}).baselines
    assert TREES not in check(data=product_rows(60)).baselines  # too few rows to say anything


def test_bounds_leave_the_trees_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MAX_WORK", 1000)
    plan = check(data=product_rows(261))
    assert plan.ok
    assert plan.baselines[TREES]["note"].startswith("not fitted: 3 columns and 1 outputs need more")


def test_two_targets_and_a_sample_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MAX_CELLS", 210 * 2)
    found = check(columns={"label": ["price", "b"]}).baselines[TREES]
    assert found["note"] == "fitted on 210 of 260 training rows"
    assert found["r2_per_target"].keys() == {"price", "b"}
    assert found["r2"] == pytest.approx(np.mean([*found["r2_per_target"].values()]))


def test_trees_that_are_clearly_better() -> None:
    numbers = {TREES: {"rmse": 40.0, "r2": 0.9}}
    found = judge_by_trees({"rmse": 60.0, "r2": 0.8}, numbers, 2000)
    assert found is not None
    assert found.code == "SF748"
    classes = {TREES: {"accuracy": 0.9, "macro_f1": 0.8}}
    found = judge_by_trees({"accuracy": 0.8, "macro_f1": 0.7}, classes, 2000)
    assert found is not None
    assert "The network ends at accuracy 0.8, macro_f1 0.7" in found.message


@pytest.mark.parametrize(
    ("ours", "trees", "rows"),
    [
        ({"rmse": 40.0, "r2": 0.9}, {"rmse": 41.0, "r2": 0.89}, 2000),
        ({"rmse": 60.0, "r2": 0.8}, {"rmse": 55.0, "r2": 0.85}, 100),
        ({"rmse": 6.0, "r2": 0.985}, {"rmse": 5.0, "r2": 0.99}, 9000),
        ({"accuracy": 0.89}, {"accuracy": 0.9}, 500),
        ({"accuracy": 0.5}, {"note": baselines.MISSING}, 500),
        ({"accuracy": None}, {"accuracy": 0.9}, 500),
    ],
)
def test_differences_that_may_be_chance(
    ours: dict[str, Any], trees: dict[str, Any], rows: int
) -> None:
    assert judge_by_trees(ours, {TREES: trees}, rows) is None
