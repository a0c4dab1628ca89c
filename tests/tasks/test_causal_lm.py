"""causal-lm: plain text, every token learned; a cycle of words is predicted almost for certain."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import surefit
from builders import write_jsonl
from surefit.cli import run as command

CYCLE = ["red", "green", "blue", "one", "two", "three", "cat"]


def cycle_rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Texts that go round the cycle from a random word on."""
    random = np.random.default_rng(seed)
    starts, lengths = random.integers(0, len(CYCLE), count), random.integers(6, 20, count)
    return [
        {"text": " ".join(CYCLE[(start + i) % len(CYCLE)] for i in range(length))}
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]


def test_learns_a_cycle_of_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "rows.jsonl", [*cycle_rows(150), {"text": " "}])
    arguments = ["train", "--data", "rows.jsonl", "--model", "tiny:llama", "--output", "run"]
    arguments += ["--epochs", "6", "--lr", "3e-3", "--set", "generate.max_new_tokens=4"]
    assert command(arguments) == 0
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["task"] == "causal-lm"
    assert plan["ledger"]["dropped_rows"] == {"empty": 1}
    assert plan["ledger"]["rows_learning_eos"] == 150
    metrics = surefit.evaluate("run", write_jsonl(tmp_path / "new.jsonl", cycle_rows(40, seed=5)))
    # The end of a text cannot be foreseen, and its first word neither.
    assert metrics["perplexity"] < 1.5
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]))
    capsys.readouterr()
    assert command(["predict", "run", "--text", "red green blue one two"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["prediction"].split()[:3] == ["three", "cat", "red"]
    folder = tmp_path / "run" / "model"
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    with torch.no_grad():
        logits = model(**tokenizer("red green blue one two", return_tensors="pt")).logits
    assert tokenizer.decode(logits[0, -1].argmax()).strip() == "three"


@pytest.mark.parametrize(
    ("overlong", "kept"), [("truncate", [5, 1]), ("drop", [5]), ("error", None)]
)
def test_one_row_in_one_row_out(overlong: str, kept: list[int] | None) -> None:
    rows = [{"text": "red " * 5}] * 5 + [{"text": "red " * 200}]
    plan = surefit.check(
        data=rows,
        model="tiny:llama",
        task="causal-lm",
        max_seq_length=30,
        overlong=overlong,
        eval_share=0.0,
    )
    if kept is None:
        assert [found.code for found in plan.findings if found.severity == "error"] == ["SF212"]
        return
    assert plan.ledger is not None
    assert plan.ledger.train_rows == sum(kept)
    assert plan.ledger.truncated_rows == len(kept) - 1
    assert plan.ledger.rows_learning_eos == 5  # the cut row has lost its end
    assert plan.job is not None
    longest = plan.job.train.row(len(plan.job.train) - 1)
    assert longest["labels"].tolist() == longest["input_ids"].tolist()


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


@pytest.mark.slow
def test_a_labelled_text_is_classified_and_a_bert_masks() -> None:
    rows = cycle_rows(20)
    labelled = [{**row, "label": "ab"[i % 2]} for i, row in enumerate(rows)]
    pairs = [{"prompt": row["text"], "completion": "yes"} for row in rows]

    def chosen(data: list[dict[str, str]], model: str) -> str | None:
        plan = surefit.check(data=data, model=model)
        return plan.task.name if plan.task else None

    assert chosen(rows, "tiny:llama") == "causal-lm"
    assert chosen(rows, "tiny:bert") == "masked-lm"
    assert chosen(labelled, "tiny:llama") == "text-classification"
    assert chosen(pairs, "tiny:llama") == "sft"
    assert chosen(pairs, "tiny:t5") == "seq2seq"
    assert chosen([{"src": "a b", "tgt": "b"}] * 20, "tiny:t5") == "seq2seq"
