"""Numbers learned from rows and from texts, measured and predicted in the data's own units."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import surefit
from builders import WORDS
from surefit.tasks.metrics.r2 import r2_of


def line_rows(count: int, seed: int = 0) -> list[dict[str, float]]:
    """y = 2a + 3b + 1000, with a little noise."""
    numbers = np.random.default_rng(seed).normal(size=(count, 3))
    return [
        {"a": float(a), "b": float(b), "y": float(2 * a + 3 * b + 1000 + 0.1 * noise)}
        for a, b, noise in numbers
    ]


def grade_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The score of a text goes by one word in it, but for less than 1."""
    choose = random.Random(seed)
    rows = []
    for _ in range(count):
        word, score = choose.choice([("bad", 100), ("fair", 200), ("good", 400)])
        words = [*choose.choices(WORDS, k=3), word]
        choose.shuffle(words)
        rows.append({"review": " ".join(words), "score": score + choose.random()})
    return rows


def test_a_line_of_two_numbers(tmp_path: Path) -> None:
    run = surefit.train(
        data=line_rows(800),
        model="tiny:mlp",
        epochs=10,
        batch_size=32,
        lr=2e-3,
        output=str(tmp_path / "run"),
    )
    assert run.plan["task"] == "regression"
    new = line_rows(200, seed=1)
    metrics = surefit.evaluate(run, new)
    assert metrics["r2"] > 0.95
    made = [
        p["prediction"] for p in surefit.predict(run, [{"a": r["a"], "b": r["b"]} for r in new])
    ]
    errors = np.array(made) - [row["y"] for row in new]
    assert metrics["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-3)
    assert metrics["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-3)
    true = np.array([row["y"] for row in new])
    assert metrics["r2"] == pytest.approx(1 - (errors**2).sum() / ((true - true.mean()) ** 2).sum())


def test_score_of_a_text(tmp_path: Path) -> None:
    run = surefit.train(
        data=grade_rows(300),
        model="tiny:bert",
        epochs=4,
        batch_size=16,
        output=str(tmp_path / "run"),
    )
    assert run.plan["task"] == "regression"
    assert run.metrics["r2"] > 0.9
    text = "red good tree sun"
    predicted = surefit.predict(run, [{"review": text}])[0]["prediction"]
    assert predicted == pytest.approx(400, abs=60)
    plain = AutoModelForSequenceClassification.from_pretrained(run.path / "model")
    tokenizer = AutoTokenizer.from_pretrained(run.path / "model")
    with torch.no_grad():
        value = plain(**tokenizer(text, return_tensors="pt")).logits[0, 0].item()
    config = plain.config
    assert value * config.target_scale + config.target_mean == pytest.approx(predicted, rel=1e-4)


def test_own_module_may_give_one_number_per_row(tmp_path: Path) -> None:
    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return self.layer(features).squeeze(-1)

    run = surefit.train(
        data=line_rows(300), model=Line(), epochs=10, lr=0.05, output=str(tmp_path / "run")
    )
    assert run.metrics["r2"] > 0.99


def test_r2_by_hand() -> None:
    true, made = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 4.0])
    sums = {
        "errors": (true - made).square().sum(),
        "labels": true.sum(),
        "squares": true.square().sum(),
        "count": torch.tensor(3),
    }
    assert r2_of(sums) == pytest.approx(0.5)


FAULTS: dict[str, tuple[list[Any], str, str]] = {
    "all the same": ([2.0] * 30, "SF230", "column 'y' is 2 in all 27 training rows"),
    "infinite": ([1.0, float("inf")] * 15, "SF207", "the target is inf"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_target_fault(name: str) -> None:
    values, code, message = FAULTS[name]
    rows = [{"a": n % 9, "y": value} for n, value in enumerate(values)]
    plan = surefit.check(data=rows, model="tiny:mlp", task="regression")
    assert [found.code for found in plan.findings if found.severity == "error"] == [code]
    assert message in plan.findings[-1].message


def test_target_of_text_is_named_with_its_row() -> None:
    rows = [{"a": n, "y": "x"} for n in range(30)]
    plan = surefit.check(data=rows, model="tiny:mlp", task="regression")
    (found,) = plan.findings
    assert found.code == "SF230"
    assert found.where["column"] == "y"
    assert "'x' is not a number" in found.message


def test_rows_without_a_target_are_counted() -> None:
    rows: list[dict[str, Any]] = [*line_rows(50), *[{"a": 1.0, "b": 2.0, "y": None}] * 3]
    plan = surefit.check(data=rows, model="tiny:mlp")
    assert plan.ledger is not None
    assert plan.ledger.dropped_rows == {"no_label": 3}
