"""Real feature sequences, ragged and not, in a small transformers encoder from scratch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import feature_rows
from surefit import check
from surefit.batches.loading import load_batch

pytestmark = pytest.mark.slow


def read_ts(path: Path) -> tuple[list[np.ndarray], list[str]]:
    """Rows of a `.ts` file as [steps, channels], and their labels."""
    rows, labels = [], []
    body = path.read_text(encoding="utf-8").split("@data", 1)[1]
    for line in body.strip().splitlines():
        *channels, label = line.strip().split(":")
        steps = [[float(value) for value in channel.split(",")] for channel in channels]
        rows.append(np.array(steps, np.float32).T)
        labels.append(label)
    return rows, labels


def surefit(folder: Path, *arguments: str) -> str:
    """Run a command and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "surefit", *arguments], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("data", "options", "least"),
    [
        ("japanese-vowels/JapaneseVowels", ("--epochs", "20", "--batch-size", "16"), 0.93),
        ("basic-motions/BasicMotions", ("--epochs", "40", "--batch-size", "4"), 0.9),
    ],
)
def test_small_encoder_from_scratch(
    data: str, options: tuple[str, ...], least: float, tmp_path: Path, shared: Path
) -> None:
    for part in ("TRAIN", "TEST"):
        rows, labels = read_ts(shared / "data" / f"{data}_{part}.ts")
        np.savez(tmp_path / f"{part}.npz", *rows, label=np.array(labels))
    surefit(
        tmp_path,
        *("train", "--data", "TRAIN.npz", "--model", "tiny:bert", "--output", "run"),
        *("--task", "feature-classification", "--set", "eval_share=0", *options),
    )
    result = json.loads(surefit(tmp_path, "evaluate", "run", "--data", "TEST.npz", "--json"))
    assert result["metrics"]["accuracy"] >= least


ENCODERS = (
    *("albert", "bert", "camembert", "convbert", "deberta", "deberta-v2", "distilbert"),
    *("electra", "ernie", "esm", "megatron-bert", "mobilebert", "modernbert", "mpnet"),
    *("nystromformer", "rembert", "roberta", "roformer", "squeezebert", "xlm-roberta"),
)


@pytest.mark.parametrize("arch", ENCODERS)
def test_encoders_take_features(arch: str) -> None:
    rows = feature_rows(20, width=5)
    plan = check(data=rows, model=f"tiny:{arch}", task="feature-classification", eval_share=0.0)
    assert plan.ok, [found.message for found in plan.findings]
    assert plan.parts is not None
    module: Any = plan.parts.module
    assert module.projection.width == 5
    batch = load_batch(plan.parts.train, np.arange(4), plan.parts.fields)
    total, count = plan.parts.loss(plan.parts.call(module, batch), batch)
    (total / count).backward()
    moved = module.projection.linear.weight.grad
    assert moved is not None
    assert moved.abs().sum() > 0
