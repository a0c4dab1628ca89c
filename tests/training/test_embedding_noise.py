"""`neftune`: noise on embeddings, by seed, epoch and row alone, and only in training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import surefit
from builders import echo_rows, feature_rows, same_pool, sentiment_rows
from surefit.errors import UsageError
from surefit.models.embedding_noise import COLUMN, noisy_embeddings

TINY: dict[str, Any] = {"data": echo_rows(40), "model": "tiny:llama", "generate": {"rows": 0}}
ALPHA = 5.0


def noise_of(job: Any, rows: list[int], epoch: int) -> list[torch.Tensor]:
    """What is added to the embeddings of each row."""
    batch = job.batch(rows, epoch)
    embedding = job.pipeline.module.get_input_embeddings()
    plain = embedding(batch["input_ids"])
    with noisy_embeddings(job.pipeline.module, batch):
        added = (embedding(batch["input_ids"]) - plain).detach()
    lengths = [len(job.train.row(row)["input_ids"]) for row in rows]
    if "row_lengths" in batch:
        return [*added[0].split(lengths)]
    return [added[number, :length] for number, length in enumerate(lengths)]


def job_of(**options: Any) -> Any:
    plan = surefit.check(**{**TINY, "neftune": ALPHA, **options})
    assert plan.job is not None
    return plan.job


def test_the_noise_of_a_row_depends_on_seed_epoch_and_row_alone() -> None:
    free, padded = job_of(), job_of(padding_free="off")
    assert free.pipeline.layout.padding_free
    assert not padded.pipeline.layout.padding_free
    alone = noise_of(free, [3], epoch=1)[0]
    for job, rows in ((free, [7, 3, 5]), (padded, [7, 3, 5]), (padded, [3])):
        torch.testing.assert_close(noise_of(job, rows, 1)[rows.index(3)], alone)
    for other in (noise_of(free, [3], epoch=2)[0], noise_of(job_of(seed=1), [3], epoch=1)[0]):
        assert other.shape != alone.shape or not torch.allclose(other, alone)
    limit = ALPHA / math.sqrt(alone.numel())
    assert 0.9 * limit < alone.abs().max() < limit + 1e-6


def step_losses(folder: Path, **options: Any) -> tuple[list[float], float]:
    """The loss of each step, and that of the evaluation before the first."""
    settings = {**TINY, "max_steps": 3, "eval_at_start": True, "output": str(folder), **options}
    history = surefit.train(**settings).history
    losses = [event["loss"] for event in history if event["event"] == "step"]
    return losses, next(e["metrics"]["loss"] for e in history if e["event"] == "eval")


def test_training_has_the_noise_and_evaluation_has_not(tmp_path: Path) -> None:
    plain, before = step_losses(tmp_path / "plain")
    noisy, same = step_losses(tmp_path / "noisy", neftune=50)
    parts, _ = step_losses(tmp_path / "parts", neftune=50, batch_size=4, grad_accum=2)
    assert before == same
    assert abs(plain[0] - noisy[0]) > 1e-4
    assert noisy == pytest.approx(parts, rel=1e-5)  # 4 x 2 is 1 x 8


def test_an_encoder_without_padding_in_its_body_has_it_too() -> None:
    rows = sentiment_rows(40)
    plain, noisy = (
        surefit.check(data=rows, model="tiny:bert", neftune=each).job for each in (None, 50)
    )
    assert plain is not None
    assert noisy is not None
    assert noisy.pipeline.layout.body_only
    batches = [job.batch([0, 1, 2], 0) for job in (plain, noisy)]
    assert COLUMN in batches[1]
    assert COLUMN not in batches[0]
    scores = [noisy.pipeline.outputs(batch).logits for batch in batches]
    assert not torch.allclose(*scores, atol=1e-4)


@pytest.mark.parametrize(
    "given",
    [
        {"data": feature_rows(40), "model": same_pool()},
        {"data": [{"source": "a b", "target": "b a"}] * 20, "model": "tiny:t5", "task": "seq2seq"},
    ],
    ids=["no embeddings", "an encoder and a decoder"],
)
def test_it_is_refused_where_it_would_have_no_effect(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="neftune adds noise to the embeddings"):
        surefit.check(neftune=5, **given)
