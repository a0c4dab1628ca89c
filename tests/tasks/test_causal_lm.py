"""causal-lm: plain text, every token learned; a cycle of words is predicted almost for certain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import surefit
from builders import learn, write_jsonl

CYCLE = ["red", "green", "blue", "one", "two", "three", "cat"]


def cycle_rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Texts that go round the cycle from a random word on."""
    random = np.random.default_rng(seed)
    starts, lengths = random.integers(0, len(CYCLE), count), random.integers(6, 20, count)
    return [
        {"text": " ".join(CYCLE[(start + i) % len(CYCLE)] for i in range(length))}
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]


def test_learns_a_cycle_of_words(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", [*cycle_rows(150), {"text": " "}])
    options = {"epochs": 6, "lr": 3e-3, "generate": {"max_new_tokens": 4}}
    run = learn(tmp_path, str(data), "tiny:llama", **options)
    assert run.plan["task"] == "causal-lm"
    assert run.plan["ledger"]["dropped_rows"] == {"empty": 1}
    assert run.plan["ledger"]["rows_learning_eos"] == 150
    metrics = surefit.evaluate(run, cycle_rows(40, seed=5))
    # The end of a text cannot be foreseen, and its first word neither.
    assert metrics["perplexity"] < 1.5
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]))
    told = surefit.predict(run, [{"text": "red green blue one two"}])[0]
    assert told["prediction"].split()[:3] == ["three", "cat", "red"]


def test_rows_that_are_tokenised_already(tmp_path: Path) -> None:
    rows = [{"input_ids": [(i + j) % 7 for j in range(9)]} for i in range(80)]
    run = surefit.train(
        data=rows,
        eval_data=rows[:7],
        model="tiny:gpt2",
        task="causal-lm",
        epochs=4,
        lr=3e-3,
        output=str(tmp_path / "run"),
    )
    assert run.metrics["token_accuracy"] > 0.9
    assert run.plan["ledger"]["trained_tokens"] == run.plan["ledger"]["train_rows"] * 8
