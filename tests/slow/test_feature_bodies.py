"""Real feature sequences, ragged and not, in a small transformers encoder from scratch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

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
