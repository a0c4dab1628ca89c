"""regression on feature sequences: the mean of a channel, ragged, in its own units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import surefit


def amounts(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Ragged rows whose target is 100 and 20 times the mean of their second channel."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        steps = random.normal(size=(int(random.integers(3, 9)), 3)) + random.normal(size=3)
        rows.append({"features": steps.astype(np.float32), "label": 100 + 20 * steps[:, 1].mean()})
    return rows


def test_amounts_are_learned_in_their_units(tmp_path: Path) -> None:
    run = surefit.train(
        data=amounts(400), model="tiny:bert", epochs=6, output=str(tmp_path / "run")
    )
    assert run.plan["task"] == "regression"
    assert run.plan["roles"] == {"features": "features", "label": "label"}
    metrics = surefit.evaluate(run, amounts(80, seed=1))
    assert metrics["r2"] > 0.8
    test = amounts(5, seed=2)
    predicted = [row["prediction"] for row in surefit.predict(tmp_path / "run", test)]
    assert np.abs(np.array(predicted) - [row["label"] for row in test]).max() < 25
    module: Any = run.model
    assert module.projection.width == 3  # of the features, not of the target


def test_a_pretrained_body_is_tuned_to_amounts(tmp_path: Path) -> None:
    surefit.train(
        data=[{"features": row["features"]} for row in amounts(40)],
        model="tiny:bert",
        max_steps=2,
        output=str(tmp_path / "pretrain"),
    )
    plan = surefit.check(data=amounts(40), model=str(tmp_path / "pretrain"))
    assert plan.ok
    assert any(n.endswith("body, mask vector, projection; new: head.") for n in plan.notes)
