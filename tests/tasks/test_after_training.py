"""Every task: a recorded run, its evaluation, predictions and export, which needs no surefit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_transformers import (
    answer_scores,
    continued,
    filled_masks,
    load_plain,
    picture_classes,
    spoken_classes,
    text_classes,
    text_numbers,
    text_ranks,
    word_tags,
)
from records.record import differences, run_record
from safetensors.torch import load_file
from task_runs import NEW_TOKENS, RUNS, TaskRun, train_custom
from transformers import AutoTokenizer

import surefit
from surefit.cli import run as command
from surefit.run.run_folder import open_run
from surefit.tasks import TASKS

Answers = list[Any]


def rows_of(folder: Path, name: str = "rows.jsonl") -> list[Any]:
    return [json.loads(line) for line in (folder.parent / name).open()]


def pictures_of(folder: Path) -> list[Path]:
    files = (folder.parent / "rows").glob("*/*.png")
    return sorted(files, key=lambda path: (path.parent.name, path.name))


def sounds_of(folder: Path) -> list[Path]:
    files = (path for path in (folder.parent / "rows").glob("*/*") if path.is_file())
    return sorted(files, key=lambda path: (path.parent.name, path.name))


def best_metrics(run: Path) -> dict[str, Any]:
    """What training measured at the step whose weights were kept."""
    opened = open_run(run)
    evaluations = [event for event in opened.history if event["event"] == "eval"]
    return next(dict(e["metrics"]) for e in evaluations if e["step"] == opened.best_step)


def same_model(folder: Path) -> None:
    """Plain transformers loads all trained weights."""
    trained = surefit.load(folder.parent / "run").state_dict()
    loaded = load_plain(folder, "AutoModelForSemanticSegmentation").state_dict()
    assert loaded.keys() == trained.keys()
    assert all(torch.equal(loaded[name], value) for name, value in trained.items())


def same_body(folder: Path) -> None:
    """The body is a plain transformers folder with the trained weights."""
    trained = surefit.load(folder.parent / "run").body.state_dict()
    loaded = load_plain(folder, "AutoModel").state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in trained.items())


def same_vectors(folder: Path) -> None:
    """Plain transformers makes the vectors that are predicted."""
    rows = rows_of(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer([row["anchor"] for row in rows], padding=True, return_tensors="pt")
    with torch.no_grad():
        states = load_plain(folder, "AutoModel").eval()(**batch).last_hidden_state
    mask = batch["attention_mask"][:, :, None]
    vectors = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1))
    told = torch.tensor([each["prediction"] for each in surefit.predict(folder, rows)])
    torch.testing.assert_close(told, vectors, atol=1e-5, rtol=1e-4)


def same_weights(folder: Path) -> None:
    """A module without a transformers class is plain safetensors."""
    trained, saved = (
        surefit.load(folder.parent / "run").state_dict(),
        load_file(folder / "model.safetensors"),
    )
    assert saved.keys() == trained.keys()
    assert all(torch.equal(saved[name], value) for name, value in trained.items())


def generated(folder: Path) -> Answers:
    return continued(folder, rows_of(folder), NEW_TOKENS)


PLAIN: dict[str, Callable[[Path], Answers | None]] = {
    "causal-lm": generated,
    "sft": generated,
    "masked-lm": lambda folder: filled_masks(folder, rows_of(folder, "asked.jsonl")),
    "seq2seq": generated,
    "text-classification": lambda folder: text_classes(folder, rows_of(folder)),
    "token-classification": lambda folder: word_tags(folder, rows_of(folder)),
    "regression": lambda folder: text_numbers(folder, rows_of(folder)),
    "ordinal": lambda folder: text_ranks(folder, rows_of(folder)),
    "preference": generated,
    "reward": lambda folder: answer_scores(folder, rows_of(folder)),
    "embedding": same_vectors,
    "tabular-classification": same_weights,
    "image-classification": lambda folder: picture_classes(folder, pictures_of(folder)),
    "audio-classification": lambda f: [name for name, _ in spoken_classes(f, sounds_of(f))],
    "image-segmentation": same_model,
    "detection": same_weights,
    "feature-classification": same_body,
    "feature-pretraining": same_body,
    "forecasting": same_body,
}
"""What an export answers without surefit, by task; None where its weights are compared instead."""


def test_every_task_is_here() -> None:
    assert {*PLAIN} == {run.task for run in RUNS} == {*TASKS} - {"custom"}  # see test_custom.py


@pytest.mark.parametrize("trained", RUNS, ids=lambda run: run.task)
def test_run_is_as_recorded_and_evaluates_predicts_and_exports(
    trained: TaskRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    trained.write(tmp_path)
    assert command(["train", *trained.arguments(), "--output", "run"]) == 0
    assert differences("runs", trained.task, run_record(tmp_path / "run")) == []
    capsys.readouterr()
    assert command(["evaluate", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == best_metrics(tmp_path / "run")
    assert command(["report", "run"]) == 0
    assert capsys.readouterr().out.strip().endswith("report.html")
    assert command(["evaluate", "run", "--data", trained.data, "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert np.isfinite(evaluated["metrics"]["loss"])
    if "confusion" in evaluated["metrics"]:
        assert len(evaluated["classes"]) == len(evaluated["metrics"]["confusion"])
    asked = "asked.jsonl" if trained.task == "masked-lm" else trained.data
    assert command(["predict", "run", "--data", asked]) == 0
    told = [json.loads(line)["prediction"] for line in capsys.readouterr().out.splitlines()]
    assert command(["export", "run", "out"]) == 0
    plain = PLAIN[trained.task](tmp_path / "out")
    if trained.task == "forecasting":  # one per series, of what follows its last row
        assert [len(values) for values in told] == [2, 2]
    elif plain is None:
        assert len(told) == evaluated["rows"]
    elif isinstance(plain[0], float):
        assert told == pytest.approx(plain, abs=1e-4)
    else:
        assert told == plain


def test_custom_run_is_as_recorded(tmp_path: Path) -> None:
    train_custom(str(tmp_path / "run"))
    assert differences("runs", "custom", run_record(tmp_path / "run")) == []
