"""loss.label_smoothing of language models is torch's, in every head, and law 3 holds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import surefit
from builders import echo_rows
from surefit.batches.collate import PADDED
from surefit.cli import run as command
from surefit.speed.sparse_head import SparseHead
from surefit.targets.metrics.token_metrics import next_token, same_token

SMOOTHING = 0.2
TEXTS = [{"text": f"{row['prompt']} {row['completion']}"} for row in echo_rows(24)]
PAIRS = [{"source": row["prompt"], "target": row["completion"]} for row in echo_rows(24)]
TASKS: dict[str, Any] = {
    "causal-lm": ("tiny:llama", TEXTS, next_token),
    "sft": ("tiny:gpt2", echo_rows(24), next_token),
    "masked-lm": ("tiny:bert", TEXTS, same_token),
    "seq2seq": ("tiny:t5", PAIRS, same_token),
}


def plan(task: str, **options: Any) -> Any:
    model, rows, _ = TASKS[task]
    loss = {"label_smoothing": SMOOTHING}
    made = surefit.check(data=rows, model=model, task=task, loss=loss, **options)
    assert made.ok, made.findings
    return made


@pytest.mark.parametrize("task", TASKS)
def test_the_loss_is_that_of_torch(task: str) -> None:
    made = plan(task)
    pipeline, train = made.job.pipeline, made.job.train
    module = pipeline.module.double().eval()
    head = pipeline.call.head
    assert isinstance(head, SparseHead)
    assert head.smoothing == SMOOTHING
    batch = pipeline.batch(train, np.arange(6))
    total, count = pipeline.loss(pipeline.outputs(batch), batch)
    found = torch.autograd.grad(total, [*module.parameters()], allow_unused=True)
    plain = replace(pipeline, layout=PADDED, call=replace(pipeline.call, head=None))
    padded = plain.batch(train, np.arange(6))
    logits, labels = TASKS[task][2](plain.outputs(padded), padded)
    expected = cross_entropy(logits, labels, reduction="sum", label_smoothing=SMOOTHING)
    assert count == len(labels)
    torch.testing.assert_close(total.double(), expected, rtol=1e-6, atol=1e-6)
    by_hand = torch.autograd.grad(expected, [*module.parameters()], allow_unused=True)
    for one, other in zip(found, by_hand, strict=True):
        if other is None:
            assert one is None or not one.any()
        else:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    halves = [plain.batch(train, np.arange(start, start + 3)) for start in (0, 3)]
    apart = [plain.loss(plain.outputs(half), half) for half in halves]
    torch.testing.assert_close(apart[0][0] + apart[1][0], expected, rtol=1e-6, atol=1e-6)
    assert apart[0][1] + apart[1][1] == count
    full, _ = plain.loss(plain.outputs(padded), padded)
    torch.testing.assert_close(full.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_validation_loss_is_smoothed_and_perplexity_is_not(tmp_path: Path) -> None:
    figures = {}
    for smoothing in (0.0, SMOOTHING):
        run = surefit.train(
            data=TEXTS,
            model="tiny:llama",
            task="causal-lm",
            loss={"label_smoothing": smoothing},
            max_steps=1,
            lr=1e-12,
            output=tmp_path / f"run{smoothing}",
        )
        figures[smoothing] = run.metrics
        again = surefit.evaluate(run, TEXTS)
        loss = run.plan["loss"]
        assert (loss or {"label_smoothing": 0.0})["label_smoothing"] == smoothing
        kept = surefit.evaluate(tmp_path / f"run{smoothing}", TEXTS)
        assert kept == again
    plain, smoothed = figures[0.0], figures[SMOOTHING]
    assert plain["perplexity"] == pytest.approx(math.exp(plain["loss"]), rel=1e-5)
    assert smoothed["perplexity"] == pytest.approx(plain["perplexity"], rel=1e-5)
    assert smoothed["loss"] != pytest.approx(plain["loss"], rel=1e-4)
    baseline = json.loads((tmp_path / f"run{SMOOTHING}" / "plan.json").read_text())["baselines"]
    assert baseline["unigram"]["loss"] > math.log(baseline["unigram"]["perplexity"])


def test_weights_of_tokens_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three\n" * 30)
    arguments = ["check", "--data", str(tmp_path / "a.txt"), "--model", "tiny:llama"]
    assert command([*arguments, "--set", "loss.class_weights=balanced"]) == 2
    assert "cross-entropy of classes" in capsys.readouterr().err
