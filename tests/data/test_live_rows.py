"""Datasets whose rows are random are read anew in each epoch, reproducibly."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import surefit
from builders import WORDS, noisy_net, stop_at, weights_of
from surefit.data.python.live_rows import find_randomness
from surefit.errors import RunFailedError

DRAWS: dict[str, Any] = {
    "torch": lambda dataset: 0.1 * torch.randn(4).numpy(),
    "numpy": lambda dataset: 0.1 * np.random.randn(4),
    "python": lambda dataset: random.choice([0.0, 0.5]),
    "rare": lambda dataset: float(random.random() < 0.05),
    "own": lambda dataset: 0.1 * dataset.own.normal(size=4),
    "unused": lambda dataset: 0.0 * random.random(),
    "none": lambda dataset: 0.0,
}


class Noisy(torch.utils.data.Dataset[Any]):
    """Vectors with noise; the label is the sign of their first value before it."""

    def __init__(self, draw: str = "torch") -> None:
        self.x = np.random.default_rng(0).normal(size=(60, 4))
        self.draw, self.own = DRAWS[draw], np.random.default_rng(1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> tuple[Any, int]:
        noise = self.draw(self)
        return (self.x[place] + noise).astype("float32"), int(self.x[place, 0] > 0)


FOUND = {"unused": (False, True), "none": (False, True), "own": (True, False)}


@pytest.mark.parametrize("draw", DRAWS)
def test_randomness_is_found_by_reading_rows_again(draw: str) -> None:
    data, before = Noisy(draw), torch.get_rng_state()
    found = find_randomness(data.__getitem__, len(data))
    assert found == FOUND.get(draw, (True, True))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(("draw", "how"), [("torch", "are drawn anew"), ("none", "were read once")])
def test_the_plan_says_how_rows_are_read(draw: str, how: str) -> None:
    plan = surefit.check(data=Noisy(draw), model=torch.nn.Linear(4, 2))
    assert "SF125" not in {found.code for found in plan.findings}
    assert any(how in note for note in plan.notes)
    pipeline, train = plan.job.pipeline, plan.job.train
    again = [pipeline.batch(train, [0, 1], epoch)["features"] for epoch in (0, 0, 1)]
    assert torch.equal(again[0], again[1])
    assert torch.equal(again[0], again[2]) == (draw == "none")
    stored = [pipeline.batch(train, [0, 1])["features"] for _ in range(2)]
    assert torch.equal(*stored)


def test_rows_that_no_seed_reproduces_are_a_warning() -> None:
    plan = surefit.check(data=Noisy("own"), model=torch.nn.Linear(4, 2))
    (found,) = [f for f in plan.findings if f.code == "SF125"]
    assert found.severity == "warning"


def train(output: Path, data: Any, **options: Any) -> Any:
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 16, "lr": 0.01, "output": str(output)}
    if "resume" in options:
        settings = {}
    return surefit.train(data=data, model=noisy_net(), **settings, **options)


@pytest.mark.slow
def test_workers_loaders_and_resuming_give_the_same_weights(tmp_path: Path) -> None:
    whole = weights_of(train(tmp_path / "whole", Noisy()))
    assert weights_of(train(tmp_path / "workers", Noisy(), workers=1)) == whole
    loader = torch.utils.data.DataLoader(Noisy(), batch_size=7)
    assert weights_of(train(tmp_path / "loader", loader)) == whole

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", Noisy(), save_every=2, callbacks=[stop_at(3)])
    assert weights_of(train(tmp_path / "x", Noisy(), resume=str(tmp_path / "stopped"))) == whole
    assert weights_of(train(tmp_path / "static", Noisy("none"))) != whole


class Said(torch.utils.data.Dataset[Any]):
    """Random texts of random lengths; now and then an empty one."""

    def __init__(self, empty: float = 0.0) -> None:
        self.empty = empty

    def __len__(self) -> int:
        return 24

    def __getitem__(self, place: int) -> dict[str, Any]:
        words = random.choices(WORDS, k=random.randint(2, 9))
        return {"text": "" if random.random() < self.empty else f"{place} {' '.join(words)}"}


@pytest.mark.slow
def test_the_targets_of_a_step_are_counted_in_what_was_read(tmp_path: Path) -> None:
    def losses(name: str, **sizes: int) -> list[float]:
        run = surefit.train(
            data=Said(),
            eval_data=[{"text": "red sun"}] * 2,
            model="tiny:llama",
            task="causal-lm",
            max_steps=3,
            overlong="truncate",
            output=str(tmp_path / name),
            **sizes,
        )
        return [event["loss"] for event in run.history if event["event"] == "step"]

    whole = losses("whole", batch_size=8)
    assert losses("parts", batch_size=2, grad_accum=4) == pytest.approx(whole, rel=1e-5)


@pytest.mark.slow
def test_a_row_that_cannot_be_used_in_one_epoch_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"row \d+, epoch \d: the row cannot be used \(empty"):
        surefit.train(
            data=Said(empty=0.1),
            model="tiny:llama",
            task="causal-lm",
            epochs=6,
            overlong="truncate",
            max_dropped_share=0.9,
            output=str(tmp_path / "run"),
        )
