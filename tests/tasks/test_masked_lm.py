"""masked-lm: what is hidden, how it is drawn, and that it can be learned."""

from __future__ import annotations

import random
from collections import Counter
from math import log
from pathlib import Path

import numpy as np
import pytest

import surefit
from builders import learn
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedTarget, MaskingTokens
from surefit.targets.masked_tokens import count_chosen, hide

FOLLOWS = {"cat": "dog", "sun": "moon", "red": "blue", "one": "two", "up": "down", "yes": "no"}


def paired_rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Texts in which every second word is decided by the one before it."""
    choose = random.Random(seed)
    rows = []
    for _ in range(count):
        firsts = choose.choices([*FOLLOWS], k=choose.randint(2, 5))
        rows.append({"text": " ".join(f"{word} {FOLLOWS[word]}" for word in firsts)})
    return rows


def unigram_loss(rows: list[dict[str, str]]) -> float:
    """The loss of always giving each word its share in the text."""
    counts = Counter(word for row in rows for word in row["text"].split())
    return -sum(n / counts.total() * log(n / counts.total()) for n in counts.values())


def encoder() -> Encoder:
    return Encoder("masked-lm", {}, target=FittedTarget(masking=MaskingTokens(1, (0, 1), 50)))


@pytest.mark.parametrize("length", [1, 3, 10, 200])
def test_what_is_hidden(length: int) -> None:
    ids = np.concatenate([[0], np.arange(2, 2 + length) % 48 + 2, [0]])
    row = {"input_ids": ids, "labels": np.where(ids < 2, -100, ids)}
    shares: Counter[str] = Counter()
    for draw in range(200):
        got = hide(row, encoder(), np.random.default_rng(draw))
        learned = got["labels"] != -100
        assert learned.sum() == count_chosen(row) == max(1, round(0.15 * length))
        assert not learned[[0, -1]].any()
        assert (got["input_ids"][~learned] == ids[~learned]).all()
        assert (got["labels"][learned] == ids[learned]).all()
        shares["masked"] += int((got["input_ids"][learned] == 1).sum())
        shares["kept"] += int((got["input_ids"][learned] == ids[learned]).sum())
        shares["all"] += int(learned.sum())
    assert shares["masked"] / shares["all"] == pytest.approx(0.8, abs=0.1)
    assert shares["kept"] / shares["all"] == pytest.approx(0.1, abs=0.08)
    assert row["input_ids"] is ids


@pytest.mark.slow
def test_learns_the_word_that_the_other_decides(tmp_path: Path) -> None:
    rows = paired_rows(600)
    run = learn(tmp_path, rows, "tiny:bert", epochs=10, batch_size=16, lr=2e-3)
    metrics = surefit.evaluate(run)
    assert metrics == surefit.evaluate(run), "evaluation masks are fixed"
    assert metrics["loss"] < 0.5 * unigram_loss(rows)
    assert metrics["token_accuracy"] > 0.75
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]))
    told = surefit.predict(run, [{"text": "sun [MASK] up down"}])[0]
    assert told["prediction"] == "sun moon up down"
    assert told["filled"] == ["moon"]


def test_masks_differ_between_epochs_and_seeds() -> None:
    plan = surefit.check(data=paired_rows(40), model="tiny:bert", task="masked-lm")
    assert plan.job is not None
    assert plan.task is not None
    row = plan.job.train.row(0)
    drawn = []
    for seed, epoch in ((0, 0), (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (2, 0)):
        prepare = plan.task.preparer(plan.job.pipeline.encoder, seed)
        assert prepare is not None
        drawn.append(prepare(row, epoch, 0, 0)["labels"].tolist())
    assert drawn[0] == drawn[1]
    assert any(labels != drawn[0] for labels in drawn[2:5])
    assert any(labels != drawn[0] for labels in drawn[5:])
