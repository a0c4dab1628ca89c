"""`surefit evaluate RUN` gives the numbers of training's own evaluation, to the bit.

Every task: tests/tasks/test_after_training.py. Here: other weights, precisions and batches.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from task_runs import RUNS, TaskRun

from builders import echo_rows, require_precision, write_jsonl
from surefit.cli import run as command
from surefit.data.open_data import open_table
from surefit.pipeline.evaluation import EvaluationSettings, Group
from surefit.run.run_folder import open_run

pytestmark = pytest.mark.slow


def write_topics(folder: Path) -> None:
    """Texts with several classes each."""
    topics = {"cat", "dog", "sun"}
    rows = [(row["prompt"], sorted({*row["prompt"].split()} & topics)) for row in echo_rows(24)]
    write_jsonl(folder / "rows.jsonl", ({"text": text, "label": label} for text, label in rows))


OF_TASK = {run.task: run for run in RUNS}
SEVERAL = TaskRun("text-classification", "tiny:distilbert", write_topics)


def train(folder: Path, task: TaskRun, *more: str) -> Path:
    task.write(folder)
    settings = ("eval_share=0.3", "generate.rows=8", *more)
    options = [word for each in settings for word in ("--set", each)]
    options += ["--lr", "3e-3", "--seed", "5", "--output", "run"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert command(["train", *task.arguments(), *options]) == 0
    return folder / "run"


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


@pytest.mark.parametrize("more", [[], ["lora.r=4"], ["padding_free=off"]], ids=str)
def test_a_model_that_was_loaded_from_a_folder(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its weights lay at other addresses in the file it came from than in the one it went to."""
    (tmp_path / "first").mkdir()
    first = train(tmp_path / "first", OF_TASK["regression"])
    weights = first / "model" / "model.safetensors"
    save_file(load_file(weights), weights, metadata={"format": "pt", "longer": "header" * 5})
    again = replace(OF_TASK["regression"], model=str(first / "model"))
    run = train(tmp_path, again, *more)
    assert evaluated(run, capsys)["metrics"] == in_training(run)["metrics"]


@pytest.mark.parametrize(
    ("task", "more"), [("sft", ["lora.r=4"]), ("text-classification", []), ("seq2seq", [])]
)
def test_in_the_precision_of_the_run(
    task: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_precision("bf16")
    run = train(tmp_path, OF_TASK[task], *more, "precision=bf16")
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


@pytest.mark.parametrize(
    "task",
    [SEVERAL, *(OF_TASK[name] for name in ("token-classification", "sft", "regression"))],
    ids=lambda task: task.write.__name__,
)
def test_neither_batch_size_nor_processes_change_a_metric(task: TaskRun, tmp_path: Path) -> None:
    """Sums over shares of the batches, added up as processes add them."""
    run = open_run(train(tmp_path, task))
    pipeline = run.open_pipeline()
    table = open_table([str(tmp_path / task.data)])
    store = pipeline.encode(pipeline.accept(table), np.arange(table.num_rows))
    alone = pipeline.evaluate(store, EvaluationSettings(8, None, 8, 5)).metrics
    for size in (1, 3, 24):
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
