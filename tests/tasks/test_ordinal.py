"""ordinal: the order of the classes, the loss of K − 1 thresholds, metrics in ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, cohen_kappa_score, mean_absolute_error
from torch import nn

import surefit
from builders import sentiment_rows
from surefit.errors import FindingError, UsageError
from surefit.inputs.encoder_state import ClassLabels
from surefit.targets.ranks import RANKS, log_probabilities, order_names
from surefit.tasks.classification import ORDINAL as SPEC


def probability(outputs: list[float], rank: int) -> float:
    """P(class): the product over the thresholds, one by one."""
    chance = 1.0
    for at, output in enumerate(outputs):
        above = 1 / (1 + np.exp(-output))
        if at == rank:
            return chance * (1 - above)
        chance *= above
    return chance


def test_loss_is_the_likelihood_of_the_thresholds() -> None:
    outputs = np.random.default_rng(0).normal(size=(20, 3)) * 3
    labels = np.arange(20) % 4
    logits = torch.from_numpy(outputs)
    batch = {"labels": torch.from_numpy(labels)}
    total, count = RANKS.loss(SimpleNamespace(logits=logits), batch)
    chances = [[probability(row, rank) for rank in range(4)] for row in outputs.tolist()]
    assert np.allclose(log_probabilities(logits).exp().numpy(), chances)
    assert np.allclose(np.sum(chances, axis=1), 1)
    expected = -np.log([row[rank] for row, rank in zip(chances, labels, strict=True)])
    assert count == 20
    assert float(total) == pytest.approx(expected.sum())


def test_metrics_are_those_of_scikit_learn_over_batches() -> None:
    random = np.random.default_rng(1)
    logits = torch.from_numpy(random.normal(size=(60, 4)))
    labels = torch.from_numpy(random.integers(0, 5, size=60))
    made = log_probabilities(logits).argmax(-1).numpy()
    expected = {
        "mae": mean_absolute_error(labels.numpy(), made),
        "qwk": cohen_kappa_score(labels.numpy(), made, weights="quadratic"),
    }
    for name, figure in expected.items():
        metric: Any = SPEC.metrics[name]
        parts = [
            metric.sums(SimpleNamespace(logits=logits[at]), {"labels": labels[at]})["confusion"]
            for at in (slice(0, 7), slice(7, 60))
        ]
        assert metric.figure({"confusion": parts[0] + parts[1]}) == pytest.approx(figure)


@pytest.mark.parametrize(
    ("names", "asked", "ordered"),
    [
        ((1, 2, 10), (), (1, 2, 10)),
        (("high", "low", "medium"), (), ("low", "medium", "high")),
        (("Strongly Agree", "agree", "neutral"), (), ("neutral", "agree", "Strongly Agree")),
        (("1 star", "10 stars", "2 stars"), (), ("1 star", "2 stars", "10 stars")),
        (("a", "b"), ("b", "c", "a"), ("b", "c", "a")),
        ((0, 1, 2), ("2", 1, 0), (2, 1, 0)),
    ],
)
def test_order_follows_from_names_or_the_user(names: Any, asked: Any, ordered: Any) -> None:
    assert order_names(ClassLabels(names), asked, "label")[0] == ordered


@pytest.mark.parametrize("asked", [(), ("red", "green"), ("red", "green", "blue", "red")])
def test_unknown_order_is_refused(asked: tuple[str, ...]) -> None:
    with pytest.raises(FindingError, match="SF238"):
        order_names(ClassLabels(("blue", "green", "red")), asked, "label")


class Thresholds(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(2, size)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layer(features)


def grades(count: int) -> list[dict[str, Any]]:
    """Points whose grade rises with the first number."""
    points = np.random.default_rng(0).uniform(size=(count, 2))
    return [{"a": float(a), "b": float(b), "label": int(a * 4) + 1} for a, b in points]


def test_own_module_learns_grades(tmp_path: Any) -> None:
    rows, output = grades(400), str(tmp_path / "run")
    torch.manual_seed(0)
    given = {"data": rows, "task": "ordinal", "rehearse": "off"}
    run = surefit.train(model=Thresholds(3), lr=0.1, epochs=10, output=output, **given)
    assert run.metrics["qwk"] > 0.8 > run.plan["baselines"]["middle class"]["qwk"]
    judged = surefit.evaluate(run, rows[:80])
    made = [row["prediction"] for row in surefit.predict(run, rows[:80])]
    true = [row["label"] for row in rows[:80]]
    assert judged["accuracy"] == pytest.approx(accuracy_score(true, made))
    assert judged["mae"] == pytest.approx(mean_absolute_error(true, made))
    expected = cohen_kappa_score(true, made, weights="quadratic")
    assert judged["qwk"] == pytest.approx(expected)
    plan = surefit.check(model=Thresholds(4), **given)
    assert any("3 thresholds" in found.message for found in plan.findings)
    plan = surefit.check(model=Thresholds(1), **given)
    assert not plan.ok
    assert any("3 thresholds" in found.message for found in plan.findings)


def test_transformers_model_reads_texts_in_the_order_the_user_names() -> None:
    rows = [{**row, "label": "abc"[at % 3]} for at, row in enumerate(sentiment_rows(30))]
    plan = surefit.check(data=rows, model="tiny:bert", label_order=["c", "a", "b", "z"])
    assert plan.ok
    assert plan.task.name == "ordinal"
    assert any("c < a < b < z" in said for said in plan.notes)
    assert not [found for found in plan.findings if found.code == "SF711"]
    with pytest.raises(UsageError, match="label_order has no effect on text-classification"):
        surefit.check(
            data=rows, model="tiny:bert", task="text-classification", label_order=["c", "a", "b"]
        )
