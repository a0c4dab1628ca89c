"""Which model families run padding-free on which tasks, and why the others are padded.

A fallback to padding is slower and groups rows by length, but trains without an error. This table
fails if a family falls back, or if its reason changes.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import surefit
from builders import WORDS, echo_rows, feature_rows, sentiment_rows

pytestmark = pytest.mark.slow


def tagged_rows(count: int) -> list[dict[str, Any]]:
    """Words whose tag says whether they are a colour."""
    choose = random.Random(0)
    lines = [choose.choices(WORDS, k=choose.randint(2, 9)) for _ in range(count)]
    tags = [["B-COLOUR" if word in WORDS[:3] else "O" for word in line] for line in lines]
    return [{"tokens": line, "tags": tag} for line, tag in zip(lines, tags, strict=True)]


def regression_rows(count: int) -> list[dict[str, Any]]:
    """Texts whose target is their number of words."""
    texts = [row["text"] for row in sentiment_rows(count)]
    return [{"text": text, "target": len(text.split()) + 0.5} for text in texts]


TEXTS = [{"text": " ".join(row["prompt"].split())} for row in echo_rows(40)]
DATA: dict[str, list[dict[str, Any]]] = {
    "text-classification": sentiment_rows(40),
    "text-regression": regression_rows(40),
    "token-classification": tagged_rows(40),
    "masked-lm": TEXTS,
    "causal-lm": TEXTS,
    "sft": echo_rows(40),
    "seq2seq": [{"source": row["prompt"], "target": row["completion"]} for row in echo_rows(40)],
    "feature-classification": feature_rows(40),
    "feature-pretraining": [{"features": row["features"]} for row in feature_rows(40)],
}
PADDING_FREE = "padding-free"
ENCODER_TASKS = (
    "text-classification",
    "token-classification",
    "masked-lm",
    "feature-classification",
    "feature-pretraining",
)
DECODER_TASKS = ("causal-lm", "sft", "text-classification", "feature-classification")
TABLE = {
    **{
        (family, task): PADDING_FREE
        for family in ("bert", "roberta", "distilbert", "electra", "modernbert")
        for task in ENCODER_TASKS
    },
    **{
        (family, task): PADDING_FREE
        for family in ("gpt2", "llama", "mistral", "qwen2")
        for task in DECODER_TASKS
    },
    ("bert", "text-regression"): PADDING_FREE,
    ("albert", "text-classification"): PADDING_FREE,
    ("xlm-roberta", "text-classification"): PADDING_FREE,
    **{
        (family, "text-classification"): f"{name}ForSequenceClassification does not let its "
        "attention be replaced"
        for family, name in {
            "deberta": "Deberta",
            "deberta-v2": "DebertaV2",
            "mpnet": "MPNet",
            "convbert": "ConvBert",
            "longformer": "Longformer",
        }.items()
    },
    ("t5", "seq2seq"): "the task's columns are not all aligned with one sequence",
}


@pytest.mark.parametrize(("family", "task"), TABLE)
def test_a_family_runs_padding_free_or_says_why_not(family: str, task: str) -> None:
    name = "regression" if task == "text-regression" else task
    plan = surefit.check(data=DATA[task], model=f"tiny:{family}", task=name)
    expected = TABLE[family, task]
    assert plan.ok, plan.findings
    if expected == PADDING_FREE:
        assert plan.choices.rows == PADDING_FREE
        assert plan.job.batches.padding_free
        assert plan.job.batches.padding_share() == 0
    else:
        assert plan.choices.rows == "padded"
        assert plan.choices.rows_reason == expected
        assert not plan.job.batches.padding_free


def test_rows_of_one_length_need_no_padding() -> None:
    steps = np.random.default_rng(0).normal(size=(30, 6, 4)).astype(np.float32)
    data = [{"features": row, "label": number % 3} for number, row in enumerate(steps)]
    plan = surefit.check(data=data, model="tiny:bert", task="feature-classification")
    assert plan.choices.rows_reason == "all rows have the same length"


def _leak(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **more: Any) -> Any:
    """Attention over the whole batch, as if its rows were one."""
    return sdpa_attention_forward(module, query, key, value, None, **more)


def _from_zero(varlen: Any, steps: Any, ids: Any) -> Any:
    return steps


def _shifted(varlen: Any, steps: Any, ids: Any) -> Any:
    return steps * 2 + 1


def _no_window(rows: Any, *_: Any) -> Any:
    return [None] * len(rows.lengths)


@pytest.mark.parametrize(
    ("family", "task", "target", "broken"),
    [
        ("bert", "text-classification", "varlen_attention.attend", _leak),
        ("bert", "token-classification", "varlen_attention.attend", _leak),
        ("roberta", "masked-lm", "varlen_attention.attend", _leak),
        ("electra", "feature-classification", "varlen_attention.attend", _leak),
        ("roberta", "text-classification", "varlen_attention.Varlen.positions", _from_zero),
        ("roberta", "masked-lm", "varlen_attention.Varlen.positions", _from_zero),
        ("bert", "text-classification", "varlen_attention.Varlen.positions", _shifted),
        ("llama", "text-classification", "varlen_attention.Varlen.positions", _shifted),
        ("modernbert", "text-classification", "varlen_kernels._window_masks", _no_window),
        ("modernbert", "token-classification", "varlen_kernels._window_masks", _no_window),
    ],
)
def test_a_wrong_kernel_is_noticed_on_untrained_weights(
    family: str, task: str, target: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"surefit.speed.{target}", broken)
    data = lengthened(DATA[task]) if broken is _no_window else DATA[task]
    plan = surefit.check(data=data, model=f"tiny:{family}", task=task)
    assert plan.choices.rows == "padded"
    assert plan.choices.rows_reason


def test_rows_beyond_a_local_window_run_padding_free() -> None:
    data = lengthened(DATA["text-classification"])
    plan = surefit.check(data=data, model="tiny:modernbert", task="text-classification")
    assert plan.choices.rows == PADDING_FREE, plan.findings


def lengthened(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows twenty times as long: ModernBERT's window reaches 64 tokens to each side."""
    return [{name: _repeat(name, value) for name, value in row.items()} for row in rows]


def _repeat(name: str, value: Any) -> Any:
    if name == "text":
        return " ".join([value] * 20)
    return list(value) * 20 if name in ("tokens", "tags") else value
