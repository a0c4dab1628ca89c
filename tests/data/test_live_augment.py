"""Augmentation of rows that are read while training: live Datasets and streams."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import surefit
from builders import noisy_net, numbered_vector, stop_at, weights_of
from surefit.data.python import streams
from surefit.errors import UsageError

MIXED = {"jitter": 0.1, "scale": 0.1, "mixup": 0.5}


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FIRST_ROWS", 60)


class Live(torch.utils.data.Dataset[Any]):
    """Vectors with noise, drawn anew whenever they are read."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, place: int) -> tuple[Any, int]:
        values, label = numbered_vector(place)
        return values + 0.01 * torch.randn(4).numpy(), label


class Endless(torch.utils.data.IterableDataset[Any]):
    """Vectors without an end."""

    def __iter__(self) -> Iterator[Any]:
        yield from map(numbered_vector, itertools.count())


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "live": (Live, {"epochs": 3}),
    "stream": (Endless, {"max_steps": 10}),
    "loader": (lambda: torch.utils.data.DataLoader(Endless(), batch_size=7), {"max_steps": 10}),
    "generator": (lambda: Endless().__iter__(), {"max_steps": 10}),
}


def plan_of(kind: str, changes: Any = MIXED, **options: Any) -> Any:
    make, length = KINDS[kind]
    plan = surefit.check(
        data=make(), model=torch.nn.Linear(4, 2), features={"augment": changes}, **length, **options
    )
    assert plan.job is not None, plan.findings
    return plan


@pytest.mark.parametrize("kind", ["live", "stream"])
def test_what_is_drawn_depends_on_seed_epoch_and_row(kind: str) -> None:
    job, other = plan_of(kind).job, plan_of(kind).job
    rows = [3, 1, 7, 20]
    for epoch in (0, 1):
        batch = job.batch(rows, epoch)
        alone = [other.batch([row], epoch) for row in rows]  # in any batch
        for name in ("features", "mixed_labels", "mixed_share"):
            assert torch.equal(batch[name], torch.cat([each[name] for each in alone])), name
    assert not torch.equal(job.batch(rows, 2)["features"], batch["features"])


@pytest.mark.parametrize("kind", ["live", "stream"])
def test_a_mixed_row_is_blended_with_another_of_its_epoch(kind: str) -> None:
    job = plan_of(kind, {"mixup": 0.5}).job
    for epoch in (0, 1):
        read = job.pipeline.live.encoded(job.pipeline, job.train, np.arange(len(job.train)), epoch)
        batch = job.batch(np.arange(len(job.train)), epoch)
        partners = []
        for place in range(len(job.train)):
            drawn = job.augment.drawn(place, epoch)
            one, two = (read[p].columns["features"] for p in (place, drawn["partner"]))
            share = np.float32(drawn["mixup"])
            expected = share * one + (np.float32(1) - share) * two
            assert np.allclose(batch["features"][place], expected, atol=1e-6)
            assert batch["mixed_labels"][place] == int(read[drawn["partner"]].columns["labels"])
            partners.append(drawn["partner"])
        assert len({*partners}) > len(partners) / 2  # drawn from all rows


def train(output: Path, kind: str, **options: Any) -> Any:
    make, length = KINDS[kind]
    settings: dict[str, Any] = {**length, "batch_size": 16, "output": str(output), "lr": 0.01}
    settings |= {"features": {"augment": MIXED}}
    if "resume" in options:
        settings = {}
    return surefit.train(data=make(), model=noisy_net(), **{**settings, **options})


@pytest.mark.parametrize(
    "kind", [k if k == "stream" else pytest.param(k, marks=pytest.mark.slow) for k in KINDS]
)
def test_a_resumed_run_equals_an_uninterrupted_one(kind: str, tmp_path: Path) -> None:
    whole = weights_of(train(tmp_path / "whole", kind))

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", kind, save_every=2, callbacks=[stop_at(7)])
    assert weights_of(train(tmp_path, kind, resume=str(tmp_path / "stopped"))) == whole
    if kind == "live":
        assert weights_of(train(tmp_path / "workers", kind, workers=1)) == whole
    assert weights_of(train(tmp_path / "plain", kind, features={})) != whole


class Said(torch.utils.data.Dataset[Any]):
    """Random texts, of which the label is a word."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> dict[str, Any]:
        word = random.choice(["see", "read", "hear"])
        return {
            "text": f"Now {word} the {'good' if place % 2 else 'bad'} {place}.",
            "label": place % 2,
        }


def said() -> Iterator[dict[str, Any]]:
    for number in itertools.count():
        yield {
            "text": f"Now see the {'good' if number % 2 else 'bad'} {number}.",
            "label": number % 2,
        }


@pytest.mark.parametrize(("data", "options"), [(Said(), {}), (said, {"max_steps": 30})])
def test_texts_are_copied_as_they_are_read(data: Any, options: dict[str, Any]) -> None:
    model = "tiny:bert"
    plan = surefit.check(data=data, model=model, augmentation_factor=2, **options)
    job, tokenizer = plan.job, plan.job.pipeline.encoder.tokenizer
    assert len(job.train) == plan.ledger.train_views > plan.ledger.train_rows

    def texts(epoch: int) -> list[str]:
        ids = job.batch(np.arange(len(job.train)), epoch)["input_ids"]
        return [tokenizer.decode(row, skip_special_tokens=True) for row in ids]

    first, second = texts(0), texts(1)
    assert first != second
    for made in (first, second):
        plain = {" ".join(text.lower().rstrip(".").split()) for text in made}
        assert len(plain) < len(made)  # a row and its copy say the same
        assert len({*made}) > len(plain)  # in another form
    again = surefit.check(data=data, model=model, augmentation_factor=2, **options).job
    ids = again.batch(np.arange(len(again.train)), 1)["input_ids"]
    assert [tokenizer.decode(row, skip_special_tokens=True) for row in ids] == second


def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(UsageError, match="without time steps"):
        plan_of("live", ["time_mask"])
    with pytest.raises(UsageError, match="a mixed row has two classes"):
        plan_of("stream", ["mixup"], loss={"class_weights": "balanced"})
