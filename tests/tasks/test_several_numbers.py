"""Several numbers per row: scaled, measured and predicted each on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

import surefit
from builders import WORDS

X = np.random.default_rng(0).normal(size=(300, 4)).astype("float32")
Y = np.stack([3 * X[:, 0] - X[:, 1], 1000 * X[:, 2] + 5], axis=1).astype("float32")


def mlp(num_outputs: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, num_outputs)
    )


def test_metrics_of_vectors_are_those_of_scikit_learn(tmp_path: Path) -> None:
    rows = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    run = surefit.train(data=rows, model=mlp(2), epochs=8, lr=0.01, output=str(tmp_path / "run"))
    assert run.plan["task"] == "regression"
    assert min(run.metrics["r2_per_target"]) > 0.9
    assert -0.3 < run.plan["baselines"]["mean"]["r2_per_target"][1] < 0.1
    found = surefit.evaluate(run, rows)
    made = np.array([row["prediction"] for row in surefit.predict(run, X)])
    expected = {
        "mae": mean_absolute_error,
        "rmse": root_mean_squared_error,
        "r2": r2_score,
    }
    for name, measure in expected.items():
        each = measure(Y, made, multioutput="raw_values")
        assert found[f"{name}_per_target"] == pytest.approx(each.tolist(), rel=1e-5)
        assert found[name] == pytest.approx(each.mean(), rel=1e-5)


def test_columns_of_a_table_are_predicted_by_name(tmp_path: Path) -> None:
    rows = [
        {"a": float(a), "b": float(b), "left": float(a + b), "right": 50 * a - b}
        for a, b in X[:, :2]
    ]
    rows[7]["right"] = None
    run = surefit.train(
        data=rows,
        columns={"label": ["left", "right"]},
        model="tiny:mlp",
        epochs=6,
        output=str(tmp_path / "run"),
    )
    assert run.metrics["r2"] > 0.8
    assert run.metrics["mae_per_target"].keys() == {"left", "right"}
    assert run.plan["ledger"]["dropped_rows"] == {"no_label": 1}
    assert run.plan["baselines"]["best single column"]["r2_per_target"]["right"] > 0.9
    (made,) = surefit.predict(run, [{"a": 1.0, "b": 0.0}])
    assert made["prediction"]["right"] == pytest.approx(50, abs=15)


def test_texts_export_the_names_and_scales_of_the_targets() -> None:
    rows = [{"text": " ".join([w, "sun"]), "score": [n, 3.5 * n * n]} for n, w in enumerate(WORDS)]
    plan = surefit.check(data=rows * 3, model="tiny:bert", eval_share=0)
    assert plan.job is not None, plan.findings
    assert plan.task is not None
    assert plan.task.name == "regression"
    config = plan.job.pipeline.module.config
    assert (config.problem_type, config.num_labels) == ("regression", 2)
    assert config.target_mean == plan.job.pipeline.encoder.fitted["mean"]


def errors(**asked: Any) -> list[tuple[str, str]]:
    plan = surefit.check(**asked)
    return [(f.code, f.message) for f in plan.findings if f.severity in ("error", "warning")]


def test_a_module_with_another_number_of_outputs_is_reported() -> None:
    data = {"x": X, "y": Y}
    few = ("SF303", "The model has 1 output, but the data has 2 numbers per row.")
    assert errors(data=data, model=mlp(1)) == [few]
    many = ("SF316", "The model has 3 outputs, the data 2 numbers per row.")
    assert errors(data=data, model=mlp(3)) == [many]
    assert errors(data=data, model=mlp(2)) == []


def test_faults_of_one_of_several_targets() -> None:
    tens = [{"a": float(n % 9), "b": float(n), "c": 7} for n in range(30)]
    label = {"columns": {"label": ["b", "c"]}, "model": "tiny:mlp", "task": "regression"}
    assert errors(data=tens, **label) == [("SF230", "column 'c' is 7 in all 27 training rows.")]
    marked = [{**row, "c": -999 if n % 10 == 3 else n / 7} for n, row in enumerate(tens)]
    ((code, message),) = [each for each in errors(data=marked, **label) if each[0] == "SF249"]
    assert message.startswith("column 'c': 3 of 30 rows have the target -999 (rows 3, 13, 23)")
    leaky = [{**row, "c": n % 7, "sum": n + n % 7} for n, row in enumerate(tens)]
    ((code, message),) = [each for each in errors(data=leaky, **label) if each[0] == "SF232"]
    assert message == "column 'sum' and the target 'b + c' have the correlation 1.0000."
    ragged = [{"x": row, "label": [1.5 * n, 2.0][: 1 + (n != 5)]} for n, row in enumerate(X[:40])]
    ((code, message),) = errors(data=ragged, model=mlp(2), task="regression")
    assert (code, "row 5: the target has 1 number" in message) == ("SF208", True)
