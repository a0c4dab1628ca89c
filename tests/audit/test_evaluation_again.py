"""`surefit evaluate RUN` gives the numbers of training's own evaluation, to the bit.

Every task: tests/tasks/test_after_training.py. Here: other weights, precisions and batches.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from builders import (
    WORDS,
    echo_rows,
    require_precision,
    sentiment_rows,
    write_jsonl,
)
from surefit.cli import run as command
from surefit.data.open_data import open_table
from surefit.pipeline.evaluation import EvaluationSettings, Group
from surefit.run.run_folder import open_run

pytestmark = pytest.mark.slow

choose = random.Random(0)
GENERATE = ["generate.rows=8", "generate.max_new_tokens=5"]


def tag_rows(count: int) -> list[dict[str, Any]]:
    made = []
    for _ in range(count):
        words = choose.choices(WORDS, k=choose.randint(2, 9))
        marks = ["B-COLOUR" if word in WORDS[:3] else "O" for word in words]
        made.append({"tokens": words, "tags": marks})
    return made


def pairs(count: int) -> list[dict[str, str]]:
    return [
        {"source": row["prompt"], "target": row["prompt"].upper()} for row in echo_rows(count, 3)
    ]


def amounts(count: int) -> list[dict[str, Any]]:
    return [
        {"text": row["text"], "label": len(row["text"]) + choose.random()}
        for row in sentiment_rows(count)
    ]


def topics(count: int) -> list[dict[str, Any]]:
    return [
        {"text": row["prompt"], "label": sorted({*row["prompt"].split()} & {"cat", "dog", "sun"})}
        for row in echo_rows(count)
    ]


CASES: dict[str, tuple[Any, str, str, list[str]]] = {
    "multi-label": (topics, "text-classification", "tiny:distilbert", []),
    "token-classification": (tag_rows, "token-classification", "tiny:bert", []),
    "sft": (echo_rows, "sft", "tiny:llama", GENERATE),
    "regression": (amounts, "regression", "tiny:bert", []),
}


def train(tmp_path: Path, data: str, task: str, model: str, more: list[str]) -> Path:
    arguments = ["train", "--data", data, "--task", task, "--model", model, "--epochs", "2"]
    arguments += ["--lr", "3e-3", "--output", str(tmp_path / "run"), "--seed", "5"]
    arguments += ["--set", "eval_share=0.3"]
    for setting in more:
        arguments += ["--set", setting]
    assert command(arguments) == 0
    return tmp_path / "run"


def evaluated(run: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert command(["evaluate", str(run), "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def in_training(run: Path) -> dict[str, Any]:
    """The evaluation of the step whose weights were kept."""
    opened = open_run(run)
    lines = (run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    best = opened.best_step
    (event,) = [e for e in events if e["event"] == "eval" and e["step"] == best]
    return dict(event)


@pytest.mark.parametrize("lora", [[], ["lora.r=4"], ["padding_free=off"]])
def test_a_model_that_was_loaded_from_a_folder(
    lora: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its weights lay at other addresses in the file it came from than in the one it went to."""
    data = str(write_jsonl(tmp_path / "rows.jsonl", amounts(60)))
    (tmp_path / "first").mkdir()
    first = train(tmp_path / "first", data, "regression", "tiny:bert", [])
    weights = first / "model" / "model.safetensors"
    save_file(load_file(weights), weights, metadata={"format": "pt", "longer": "header" * 5})
    run = train(tmp_path, data, "regression", str(first / "model"), lora)
    assert evaluated(run, capsys)["metrics"] == in_training(run)["metrics"]


@pytest.mark.parametrize(
    ("make", "task", "model", "more"),
    [
        (echo_rows, "sft", "tiny:llama", [*GENERATE, "lora.r=4"]),
        (sentiment_rows, "text-classification", "tiny:bert", []),
        (pairs, "seq2seq", "tiny:t5", GENERATE),
    ],
)
def test_in_the_precision_of_the_run(
    make: Any,
    task: str,
    model: str,
    more: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    require_precision("bf16")
    data = write_jsonl(tmp_path / "rows.jsonl", make(60))
    run = train(tmp_path, str(data), task, model, [*more, "precision=bf16"])
    event, again = in_training(run), evaluated(run, capsys)
    assert again["metrics"] == event["metrics"]
    assert again["samples"] == event.get("samples", [])
    assert again["precision"] == "bf16"
    plan = json.loads((run / "plan.json").read_text(encoding="utf-8"))
    assert plan["precision"] == "bf16"
    plan["precision"] = "fp32"
    (run / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    assert config["precision"] == "bf16"
    assert evaluated(run, capsys)["metrics"]["loss"] != event["metrics"]["loss"]


@pytest.mark.parametrize("case", CASES)
def test_neither_batch_size_nor_processes_change_a_metric(case: str, tmp_path: Path) -> None:
    """Sums over shares of the batches, added up as processes add them."""
    make, task, model, more = CASES[case]
    data = write_jsonl(tmp_path / "rows.jsonl", make(60))
    run = open_run(train(tmp_path, str(data), task, model, more))
    pipeline = run.open_pipeline()
    table = open_table([str(data)])
    store = pipeline.encode(pipeline.accept(table), np.arange(table.num_rows))
    alone = pipeline.evaluate(store, EvaluationSettings(8, None, 8, 5)).metrics
    for size in (1, 3, 60):
        again = pipeline.evaluate(store, EvaluationSettings(size, None, 8, 5)).metrics
        assert again == pytest.approx(alone, rel=1e-5)
    shares: list[list[Any]] = []
    for index in range(2):
        values: list[Any] = []
        noting = Group(index, 2, lambda value, kept=values: kept.append(value) or value)  # type: ignore[misc]
        pipeline.evaluate(store, EvaluationSettings(8), noting)
        shares.append(values)
    summed = [first + second for first, second in zip(*shares, strict=True)]
    whole: list[Any] = []
    pipeline.evaluate(
        store, EvaluationSettings(8), Group(0, 1, lambda value: whole.append(value) or value)
    )
    for one, two in zip(whole, summed, strict=True):
        assert torch.allclose(one.double(), two.double(), rtol=1e-12)
