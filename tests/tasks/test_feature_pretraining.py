"""feature-pretraining: hidden steps are reconstructed, in known sequences better than guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import surefit
from builders import feature_rows, learn
from surefit.batches.loading import load_batch
from surefit.targets.masked_steps import choose_steps

TASK = "feature-pretraining"


def ramps(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Ragged rows that stay near a level of their own, in two channels of different units."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        level = random.normal(size=2)
        steps = level + 0.1 * random.normal(size=(int(random.integers(5, 15)), 2))
        rows.append({"features": (steps * [1, 5] + [0, 40]).astype(np.float32)})
    return rows


def cycles(count: int, seed: int = 0, width: int = 5) -> list[dict[str, Any]]:
    """One-hot rows in which each step decides the next one."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        start, length = random.integers(width), random.integers(6, 25)
        rows.append({"features": np.eye(width)[(start + np.arange(length)) % width]})
    return rows


def test_masked_steps_are_reconstructed(tmp_path: Path) -> None:
    train, test = ramps(300), ramps(80, seed=1)
    run = learn(tmp_path, train, "tiny:bert", epochs=6)
    assert run.plan["task"] == TASK
    metrics = surefit.evaluate(run, test)
    assert set(metrics) == {"loss"}
    steps = np.concatenate([row["features"] for row in test])
    mean = np.concatenate([row["features"] for row in train]).mean(0)
    guessed = float(((steps - mean) ** 2).mean())
    assert metrics["loss"] < 0.3 * guessed

    answer = surefit.predict(run, test[:1])[0]
    masked = np.array(answer["masked_steps"])
    wrong = np.array(answer["prediction"]) - test[0]["features"][masked]
    assert wrong.shape == (len(masked), 2)
    again = surefit.load(tmp_path / "run")
    left, right = again.state_dict(), run.model.state_dict()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)
    assert surefit.evaluate(tmp_path / "run", test) == pytest.approx(metrics)


@pytest.mark.slow
def test_one_hot_steps_are_classified(tmp_path: Path) -> None:
    run = learn(tmp_path, cycles(300), "tiny:bert", epochs=8)
    metrics = surefit.evaluate(run, cycles(60, seed=1))
    assert metrics["accuracy"] > 0.9
    assert metrics["loss"] < 0.5 * np.log(5)
    assert run.model.projection.scale.tolist() == [1] * 5  # one-hot steps stay as they are
    answer = surefit.predict(run, cycles(1, seed=2))[0]
    assert np.allclose(np.sum(answer["prediction"], axis=1), 1, atol=1e-5)


def test_targets_are_counted_before_the_first_step() -> None:
    for rows, width in ((ramps(40), 2), (cycles(40), 1)):
        plan = surefit.check(data=rows, model="tiny:bert", eval_share=0.0)
        assert plan.job is not None
        store = plan.job.train
        for place in range(len(store)):
            row = store.row(place)
            masked = row["masked_steps"] == 1
            assert masked.sum() == max(1, round(0.15 * len(masked)))
            assert (row["inputs_embeds"][masked] == 0).all()
            source = np.asarray(rows[int(store.source_row[place])]["features"], np.float32)
            assert (row["labels"] == source[masked]).all()
            assert (row["inputs_embeds"][~masked] == source[~masked]).all()
            assert store.num_targets[place] == masked.sum() * width
        batch = load_batch(store, np.arange(40), plan.job.pipeline.fields)
        logits = torch.zeros(batch["inputs_embeds"].shape)
        outputs = type("Outputs", (), {"logits": logits})
        total, count = plan.job.pipeline.loss(outputs, batch)
        assert count == store.num_targets.sum()
        held = np.concatenate([store.row(place)["labels"] for place in range(40)])
        expected = len(held) * np.log(5) if width == 1 else (held.astype(float) ** 2).sum()
        assert float(total) == pytest.approx(expected, rel=1e-5)


def test_masks_depend_on_seed_and_content_only() -> None:
    steps = np.arange(40, dtype=np.float32).reshape(20, 2)
    visible = np.arange(20)
    chosen = choose_steps(visible, 0, steps)
    assert (choose_steps(visible, 0, steps.copy()) == chosen).all()
    others = [choose_steps(visible, seed, steps).tolist() for seed in range(1, 9)]
    assert any(other != chosen.tolist() for other in others)
    assert choose_steps(np.array([3]), 0, steps).tolist() == [3]


def test_padding_of_the_data_is_never_masked() -> None:
    rows = [
        {"features": np.ones((9, 2), np.float32) * n, "mask": [1] * 3 + [0] * 6} for n in range(30)
    ]
    plan = surefit.check(data=rows, model="tiny:bert", task=TASK, eval_share=0.0)
    assert plan.job is not None
    for place in range(30):
        assert not plan.job.train.row(place)["masked_steps"][3:].any()


def test_module_of_ones_own(tmp_path: Path) -> None:
    class Filler(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.GRU(4, 16, batch_first=True)
            self.head = nn.Linear(16, 4)

        def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
            return self.head(self.body(inputs_embeds)[0])

    rows = [{"features": row["features"]} for row in feature_rows(60)]
    run = surefit.train(data=rows, model=Filler(), max_steps=3, output=str(tmp_path / "run"))
    assert run.plan["task"] == TASK
    assert run.metrics["loss"] > 0
    pooled = surefit.check(data=rows, model=nn.Sequential(nn.Flatten(), nn.LazyLinear(4)))
    assert [found.code for found in pooled.findings if found.severity == "error"] == ["SF305"]
