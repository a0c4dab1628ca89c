"""Losses of 1, 2 and 4 processes, data parallel and divided, at the same effective batch.

    python bench/same_curves.py                     # the whole grid; writes the table into the docs
    python bench/same_curves.py --tasks sft --processes 1,2 --parallel fsdp --dry

Every run has 24 rows a step in micro-batches of 2, accumulated by fewer processes, with a smaller
last step. Differences are to one process; the runs have no dropout and compute in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "several-processes.md"
BEGIN, END = "<!-- same_curves: begin -->", "<!-- same_curves: end -->"
MICRO_BATCHES = 4
"""Micro-batches in a step, over all processes."""
WORDS = ["red", "blue", "green", "one", "two", "three", "cat", "dog", "tree", "sun", "moon"]
MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.first = nn.Linear(4, 24)
        self.blocks = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))
        self.head = nn.Linear(24, num_classes)

    def forward(self, inputs_embeds, attention_mask):
        hidden = torch.tanh(self.first(inputs_embeds))
        for block in self.blocks:
            hidden = hidden + torch.tanh(block(hidden))
        mask = attention_mask.unsqueeze(-1).float()
        return self.head((hidden * mask).sum(1) / mask.sum(1))

def make(num_classes):
    return Net(num_classes)
"""
TASKS: dict[str, dict[str, Any]] = {
    "sft, LoRA": {
        "data": "answers.jsonl",
        "model": "tiny:llama",
        "lora": {"r": 4},
        "checkpointing": "on",
    },
    "causal-lm": {"data": "texts.jsonl", "model": "tiny:gpt2", "task": "causal-lm"},
    "seq2seq": {"data": "answers.jsonl", "model": "tiny:t5", "task": "seq2seq"},
    "text-classification": {"data": "labels.jsonl", "model": "tiny:bert"},
    "own module": {"data": "series.npz", "model": "net:make"},
}
"""What is trained, besides what all runs have."""
SHARED = {"batch_size": 2, "max_steps": 7, "lr": 1e-3, "eval_every": 4, "seed": 3}
EPSILON = 1e-3
"""Of AdamW. Sums over processes are rounded otherwise than those of one. With its usual 1e-8, AdamW
turns a gradient of nearly zero into a whole step, in the direction that rounding gives it: noise of
1e-7 of the largest gradient moves the losses of seq2seq by 2e-5 (lr 1e-3) or 6e-5 (3e-3) in seven
steps. With 1e-3, or SGD, it moves them by 5e-7."""


def write_data(folder: Path) -> None:
    """The files of all tasks; 45 rows of ragged length, of which 41 are trained on."""
    import numpy as np

    choose = random.Random(0)

    def words() -> list[str]:
        return choose.choices(WORDS, k=choose.randint(1, 12))

    rows = [words() for _ in range(45)]
    files = {
        "answers.jsonl": [{"prompt": " ".join(w), "completion": w[-1]} for w in rows],
        "texts.jsonl": [{"text": " ".join(w)} for w in rows],
        "labels.jsonl": [{"text": " ".join(w), "label": str(len(w) % 2)} for w in rows],
    }
    for name, lines in files.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "net.py").write_text(MODULE, encoding="utf-8")
    made = np.random.default_rng(0)
    series = [made.normal(size=(int(made.integers(1, 9)), 4)).astype("float32") for _ in rows]
    np.savez(
        folder / "series.npz",
        features=np.concatenate(series),
        lengths=np.array([len(each) for each in series]),
        label=np.array([int(each.mean() > 0) for each in series]),
    )


def run_worker(folder: Path, output: str, processes: int, parallel: str, names: list[str]) -> None:
    """Train the tasks one after the other, in this process of several."""
    import torch

    import surefit

    os.chdir(folder)
    sys.path.insert(0, str(folder))
    for name in names:
        asked = {**SHARED, "grad_accum": MICRO_BATCHES // processes, **TASKS[name]}
        surefit.train(
            **asked,
            optimizer=lambda weights: torch.optim.AdamW(weights, lr=SHARED["lr"], eps=EPSILON),
            parallel=parallel,
            output=f"{output}/{name}",
        )


def train_curves(
    folder: Path, processes: int, parallel: str, names: Iterable[str], timeout: float = 600
) -> dict[str, list[float]]:
    """The losses of each task: of every step, and of every evaluation."""
    output, names = f"{parallel}-{processes}", list(names)
    worker = [__file__, "--worker", str(folder), output, str(processes), parallel, *names]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(launcher if processes > 1 else []), *worker]
    run_bounded(command, timeout)
    return {name: read_curve(folder / output / name) for name in names}


def run_bounded(command: Sequence[str], timeout: float) -> None:
    """Run a command; with all of its processes it ends in time, whatever they wait for."""

    child = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        processes = psutil.Process(child.pid)
        for each in [*processes.children(recursive=True), processes]:
            each.kill()
        _, said = child.communicate()
        raise TimeoutError(f"no end after {timeout} s: {said[-3000:]}") from None
    if child.returncode:
        raise RuntimeError(f"exit {child.returncode}: {said[-6000:]}")


def read_curve(run: Path) -> list[float]:
    """The losses of a run's events."""
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    known = [e for e in events if e["event"] in ("step", "eval")]
    return [e["loss"] if e["event"] == "step" else e["metrics"]["loss"] for e in known]


def largest_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference of two curves of the same length."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def main() -> None:
    """Run the grid, print it, and write it into the docs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", nargs="+")
    parser.add_argument("--tasks", default="")
    parser.add_argument("--processes", default="1,2,4")
    parser.add_argument("--parallel", default="ddp,fsdp")
    parser.add_argument("--dry", action="store_true", help="print the table only")
    asked = parser.parse_args()
    if asked.worker:
        folder, output, processes, parallel, *names = asked.worker
        run_worker(Path(folder), output, int(processes), parallel, names)
        return
    names = [name for name in TASKS if asked.tasks in name]
    counts = [int(count) for count in asked.processes.split(",")]
    kinds = asked.parallel.split(",")
    with tempfile.TemporaryDirectory() as made:
        write_data(Path(made))
        found = {}
        for kind in kinds:
            for count in counts:
                began = time.time()
                found[kind, count] = train_curves(Path(made), count, kind, names)
                print(f"{kind} {count}: {time.time() - began:.0f} s", file=sys.stderr)
    table = "\n".join(_table(found, names, kinds, counts))
    print(table)
    if not asked.dry:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text[: text.index(BEGIN)], text[text.index(END) :]
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{after}", encoding="utf-8")


def _table(
    found: dict[tuple[str, int], dict[str, list[float]]],
    names: list[str],
    kinds: list[str],
    counts: list[int],
) -> list[str]:
    others = [(k, c) for k in kinds for c in counts if (k, c) != (kinds[0], counts[0])]
    head = " | ".join(f"{kind}, {count}" for kind, count in others)
    lines = [f"| task | last loss, 1 process | {head} |", "| --- " * (2 + len(others)) + "|"]
    for name in names:
        alone = found[kinds[0], counts[0]][name]
        cells = " | ".join(f"{largest_difference(alone, found[o][name]):.1e}" for o in others)
        lines.append(f"| {name} | {alone[-2]:.4f} | {cells} |")
    return lines


if __name__ == "__main__":
    main()
