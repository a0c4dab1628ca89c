"""A short run of every task: its data, its model and its options."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pictures import SHAPES, disc_rows, draw, write_discs, write_png
from tones import write_tones
from torch import nn

from builders import WORDS, echo_rows, feature_rows, save_ragged, sentiment_rows, write_jsonl

EXAMPLES = Path(__file__).parents[1] / "examples"
NEW_TOKENS = 8
"""Few: two tokens that are equally likely but for rounding are chosen between by the CPU."""


@dataclass(frozen=True)
class TaskRun:
    """A task, the model, and what writes the data into a folder."""

    task: str
    model: str
    write: Callable[[Path], object]
    data: str = "rows.jsonl"
    more: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """What follows `surefit train`, but for the output."""
        given = ["--data", self.data, "--model", self.model, "--task", self.task]
        few = ("--max-steps", "3", "--set", f"generate.max_new_tokens={NEW_TOKENS}")
        return [*given, *few, *(part for each in self.more for part in ("--set", each))]


def write_texts(folder: Path) -> None:
    write_jsonl(folder / "rows.jsonl", ({"text": row["prompt"]} for row in echo_rows(24)))


def write_masked(folder: Path) -> None:
    write_texts(folder)
    write_jsonl(folder / "asked.jsonl", [{"text": "red [MASK] cat"}, {"text": "[MASK] sun"}])


def write_pairs(folder: Path) -> None:
    pairs = [{"source": r["prompt"], "target": r["completion"]} for r in echo_rows(24)]
    write_jsonl(folder / "rows.jsonl", pairs)


def write_scores(folder: Path) -> None:
    rows = [{"text": row["prompt"], "label": len(row["prompt"]) / 3} for row in echo_rows(24)]
    write_jsonl(folder / "rows.jsonl", rows)


def write_tags(folder: Path) -> None:
    rows = [row["prompt"].split() for row in echo_rows(24)]
    tagged = ({"tokens": r, "tags": [f"B-{w[0]}" for w in r]} for r in rows)
    write_jsonl(folder / "rows.jsonl", tagged)


def write_table(folder: Path) -> None:
    rows = [{"a": n % 7, "b": WORDS[n % 3], "label": "xy"[n % 7 > 3]} for n in range(40)]
    write_jsonl(folder / "rows.jsonl", rows)


def write_pictures(folder: Path) -> None:
    for n in range(18):
        write_png(folder / "rows" / SHAPES[n % 3] / f"{n:02}.png", draw(SHAPES[n % 3], n))


def write_grades(folder: Path) -> None:
    rows = (
        {**row, "label": ("low", "medium", "high")[n % 3]}
        for n, row in enumerate(sentiment_rows(24))
    )
    write_jsonl(folder / "rows.jsonl", rows)


def write_answers(folder: Path) -> None:
    """Which of two words follows a prompt."""
    rows = (
        {"prompt": row["prompt"], "chosen": WORDS[n % 3], "rejected": WORDS[(n + 1) % 3]}
        for n, row in enumerate(echo_rows(24))
    )
    write_jsonl(folder / "rows.jsonl", rows)


def write_neighbours(folder: Path) -> None:
    """Texts and the same words in another order."""
    texts = [row["prompt"].split() for row in echo_rows(24)]
    pairs = ({"anchor": " ".join(each), "positive": " ".join(each[::-1])} for each in texts)
    write_jsonl(folder / "rows.jsonl", pairs)


def write_boxes(folder: Path) -> None:
    """A box around each disc, and the detector of the examples, by which they are found."""
    rows = []
    for number, row in enumerate(disc_rows(18)):
        write_png(folder / f"{number}.png", row["image"])
        down, right = np.nonzero(row["mask"])
        ends = (right.min(), down.min(), right.max() + 1, down.max() + 1)
        box = [int(end) for end in ends]
        rows.append({"image": f"{number}.png", "boxes": [box], "labels": ["disc"]})
    write_jsonl(folder / "rows.jsonl", rows)
    shutil.copy(EXAMPLES / "grid_detector.py", folder)


def write_features(folder: Path) -> None:
    save_ragged(folder / "rows.npz", feature_rows(24))


def write_series(folder: Path) -> None:
    """Sales of two shops on each day."""
    rows = [
        {"shop": shop, "day": f"2024-{1 + day // 28:02}-{1 + day % 28:02}", "sales": day % 7 + size}
        for shop, size in (("north", 3.0), ("south", 40.0))
        for day in range(28)
    ]
    write_jsonl(folder / "rows.jsonl", rows)


SERIES = ("forecast.group=shop", "forecast.time=day", "forecast.history=7", "forecast.horizon=2")

RUNS = (
    TaskRun("causal-lm", "tiny:llama", write_texts),
    TaskRun("sft", "tiny:llama", lambda f: write_jsonl(f / "rows.jsonl", echo_rows(24))),
    TaskRun("masked-lm", "tiny:bert", write_masked),
    TaskRun("seq2seq", "tiny:t5", write_pairs),
    TaskRun(
        *("text-classification", "tiny:bert"),
        lambda folder: write_jsonl(folder / "rows.jsonl", sentiment_rows(24)),
    ),
    TaskRun("token-classification", "tiny:bert", write_tags),
    TaskRun("regression", "tiny:bert", write_scores),
    TaskRun("ordinal", "tiny:bert", write_grades),
    TaskRun("preference", "tiny:llama", write_answers),
    TaskRun("reward", "tiny:llama", write_answers),
    TaskRun("embedding", "tiny:bert", write_neighbours),
    TaskRun("tabular-classification", "tiny:mlp", write_table),
    TaskRun("image-classification", "tiny:vit", write_pictures, "rows"),
    TaskRun("audio-classification", "tiny:wav2vec2", lambda f: write_tones(f / "rows", 18), "rows"),
    TaskRun("image-segmentation", "tiny:segformer", lambda f: write_discs(f / "rows", 18), "rows"),
    TaskRun("detection", "grid_detector:make", write_boxes),
    TaskRun("feature-classification", "tiny:bert", write_features, "rows.npz"),
    TaskRun("feature-pretraining", "tiny:bert", write_features, "rows.npz"),
    TaskRun("forecasting", "tiny:bert", write_series, more=SERIES),
)
"""Every task but `custom`, whose loss is passed from Python: see `train_custom`."""


def train_custom(output: str) -> None:
    """A module with a loss of its own."""
    import surefit

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    x = np.random.default_rng(0).normal(size=(24, 2)).astype(np.float32)
    surefit.train(
        data={"x": x, "y": x.sum(1)},
        model=net,
        loss_fn=lambda outputs, batch: ((outputs[:, 0] - batch["y"]) ** 2).mean(),
        max_steps=3,
        output=output,
        quiet=True,
    )
