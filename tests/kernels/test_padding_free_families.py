"""Which model families run padding-free on which tasks, and why the others are padded.

A fallback to padding is slower and groups rows by length, but trains without an error. This table
fails if a family falls back, or if its reason changes.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import surefit
from builders import WORDS, echo_rows, feature_rows, sentiment_rows
from surefit.plan.plan import Plan


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
            "xlnet": "XLNet",
        }.items()
    },
    ("t5", "seq2seq"): "its columns are not all aligned with one sequence",
}


def planned(family: str, task: str) -> Plan:
    name = "regression" if task == "text-regression" else task
    return surefit.check(data=DATA[task], model=f"tiny:{family}", task=name)


@pytest.mark.parametrize(("family", "task"), TABLE)
def test_a_family_runs_padding_free_or_says_why_not(family: str, task: str) -> None:
    plan, expected = planned(family, task), TABLE[family, task]
    assert plan.ok, plan.findings
    assert plan.job is not None
    notes = [finding.message for finding in plan.findings if finding.code == "SF501"]
    if expected == PADDING_FREE:
        assert (plan.choices["rows"], notes) == (PADDING_FREE, [])
        assert plan.job.batches.padding_free
        assert plan.job.batches.padding_share() == 0
    else:
        assert plan.choices["rows"] == "padded"
        assert plan.choices["rows_reason"] == expected
        assert notes == [f"Batches are padded: {expected}."]
        assert not plan.job.batches.padding_free


def test_rows_of_one_length_need_no_padding() -> None:
    steps = np.random.default_rng(0).normal(size=(30, 6, 4)).astype(np.float32)
    data = [{"features": row, "label": number % 3} for number, row in enumerate(steps)]
    plan = surefit.check(data=data, model="tiny:bert", task="feature-classification")
    assert plan.choices["rows_reason"] == "all rows have the same length"
    assert not [finding for finding in plan.findings if finding.code == "SF501"]


@pytest.mark.parametrize("task", ["text-classification", "token-classification", "masked-lm"])
@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_a_run_trains_resumes_evaluates_and_predicts(
    family: str, task: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"data": DATA[task], "model": f"tiny:{family}", "task": task}
    options |= {"epochs": 2, "batch_size": 6, "eval_share": 0.2}
    whole = surefit.train(**options, output=str(tmp_path / "whole"))
    assert whole.plan["choices"]["rows"] == PADDING_FREE
    assert surefit.evaluate(str(whole.path)) == whole.metrics  # to the bit
    padded = surefit.train(**options, padding_free="off", max_steps=1, output=str(tmp_path / "p"))
    assert padded.plan["choices"]["rows_reason"] == "padding_free=off or compile=on"

    def stop(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        surefit.train(**options, output=str(tmp_path / "cut"), save_every=2, callbacks=[stop])
    cut = surefit.train(resume=tmp_path / "cut", data=options["data"])
    strip = [[{**e, "seconds": 0} for e in run.history] for run in (whole, cut)]
    assert strip[0] == strip[1]
    assert len(surefit.predict(cut, DATA[task][:5])) == 5


def test_one_step_over_all_rows_is_that_of_padded_rows(tmp_path: Path) -> None:
    """One step over all rows: their order in it does not matter."""
    options: dict[str, Any] = {"data": DATA["text-classification"], "model": "tiny:roberta"}
    options |= {"task": "text-classification", "batch_size": 40, "max_steps": 1}
    varlen = surefit.train(**options, output=str(tmp_path / "varlen"))
    padded = surefit.train(**options, padding_free="off", output=str(tmp_path / "padded"))
    losses = [run.metrics["loss"] for run in (varlen, padded)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
