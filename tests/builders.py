"""Small real things to train on, built on the spot."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from surefit.checks.half_precision_trial import why_not
from surefit.inputs.batch_tokenizing import tokenize_rows
from surefit.inputs.encoded_row import Encoded
from surefit.inputs.encoder import Encoder
from surefit.run.events import read_events
from surefit.run.run_folder import Run

WORDS = ["red", "blue", "green", "one", "two", "three", "cat", "dog", "tree", "sun", "moon"]


def mostly_slow(cases: Iterable[Any], every: int, *more: Any) -> list[Any]:
    """Parameters of a test: each n-th is in the default tier, the others are slow, with `more`."""
    marks = (pytest.mark.slow, *more)
    return [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=marks)
        if place % every
        else each
        for place, each in enumerate(cases)
    ]


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def echo_rows(count: int, seed: int = 0, longest: int = 12) -> list[dict[str, str]]:
    """Prompts of ragged length whose answer is their last word."""
    choose = random.Random(seed)
    prompts = [choose.choices(WORDS, k=choose.randint(1, longest)) for _ in range(count)]
    return [{"prompt": " ".join(words), "completion": words[-1]} for words in prompts]


def sentiment_rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Texts whose label is decided by one word in them."""
    choose = random.Random(seed)
    rows = []
    for _ in range(count):
        label = choose.choice(["bad", "good"])
        words = [*choose.choices(WORDS, k=choose.randint(1, 9)), label]
        choose.shuffle(words)
        rows.append({"text": " ".join(words), "label": label})
    return rows


def feature_rows(count: int, seed: int = 0, width: int = 4) -> list[dict[str, Any]]:
    """Ragged feature sequences whose class is the channel with the largest mean."""
    random_numbers = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        label = int(random_numbers.integers(3))
        steps = random_numbers.normal(size=(int(random_numbers.integers(2, 9)), width))
        steps[:, label] += 2
        rows.append({"features": steps.astype(np.float32), "label": label})
    return rows


class MeanPool(nn.Module):
    """A small classifier of feature sequences; dropout makes random state matter."""

    def __init__(self, num_classes: int = 3, width: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Linear(width, 16)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(16, num_classes)

    def forward(self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(torch.tanh(self.body(inputs_embeds)))
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return self.head((hidden * mask).sum(1) / mask.sum(1))


def same_pool(dropout: float = 0.0) -> MeanPool:
    """The classifier, with the same weights each time."""
    torch.manual_seed(0)
    return MeanPool(dropout=dropout)


MODULE_SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Linear({width}, 32)
        self.dropout = nn.Dropout({dropout})
        self.head = nn.Linear(32, num_classes)

    def forward(self, inputs_embeds, attention_mask):
        hidden = self.dropout(torch.tanh(self.body(inputs_embeds)))
        mask = attention_mask.unsqueeze(-1).float()
        return self.head((hidden * mask).sum(1) / mask.sum(1))


def make(num_classes):
    return Net(num_classes)
"""


def write_module(folder: Path, name: str = "net", width: int = 4, dropout: float = 0.0) -> str:
    """Write a user's module file and return its `module:function` name."""
    (folder / f"{name}.py").write_text(MODULE_SOURCE.format(width=width, dropout=dropout))
    return f"{name}:make"


def save_ragged(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Feature rows as flat values and lengths in one .npz."""
    np.savez(
        path,
        features=np.concatenate([row["features"] for row in rows]),
        lengths=np.array([len(row["features"]) for row in rows]),
        label=np.array([row["label"] for row in rows]),
    )
    return path


def encode_one(encode: Any, row: Mapping[str, Any], encoder: Encoder) -> Encoded:
    """What a task's `encode` makes of one row, its texts tokenized."""
    encoding = encode(row, encoder)
    return encoding.finish(tokenize_rows([encoding], encoder.tokenizer)[0])


def learn(folder: Path, rows: Any, model: Any, **options: Any) -> Run:
    """Train until the answer is known: evaluated once, at the end, without a rehearsal."""
    import surefit

    quick: dict[str, Any] = {"eval_every": 10**6, "rehearse": False, "quiet": True}
    return surefit.train(data=rows, model=model, output=str(folder / "run"), **quick, **options)


def save_tiny_base(folder: Path, rows: list[dict[str, str]]) -> str:
    """A small model with its tokenizer in a folder of its own, as if it were a trained one."""
    import surefit

    job = surefit.check(data=rows, model="tiny:llama", generate={"rows": 0}).job
    assert job is not None
    job.pipeline.module.save_pretrained(folder)  # type: ignore[operator]
    job.pipeline.encoder.tokenizer.save_pretrained(folder)
    return str(folder)


def stop_at(step: int, sent: signal.Signals | None = None) -> Callable[[Any], None]:
    """A callback that ends its run after a step: at once, or by a signal to this process."""

    def stop(event: Any) -> None:
        if event["event"] == "step" and event["step"] == step:
            if sent is None:
                raise KeyboardInterrupt
            os.kill(os.getpid(), sent)

    return stop


def events_of(run: Run | Path) -> list[dict[str, Any]]:
    """The events of a run, but for their times."""
    path = (run if isinstance(run, Path) else run.path) / "events.jsonl"
    return [{k: v for k, v in event.items() if k != "seconds"} for event in read_events(path)]


def start_python(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start Python in a folder, on the CPU; it finds the package, the tests and the benchmarks."""
    tests = Path(__file__).resolve().parent
    paths = os.pathsep.join(map(str, (tests, tests.parent, tests.parent / "bench")))
    own = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **own, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_python(folder: Path, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run Python to its end; its exit code, stdout and stderr."""
    child = start_python(folder, *arguments, **variables)
    out, said = child.communicate(timeout=600)
    return child.returncode, out, said


def noisy_net() -> nn.Module:
    """A small classifier of vectors of four, with dropout, that starts the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))


def weights_of(run: Run) -> list[float]:
    """All weights of a run's model."""
    return torch.cat([p.detach().flatten() for p in run.model.parameters()]).tolist()


def allocated_peak(step: Any, module: nn.Module, optimizer: Any, others: list[Any]) -> int:
    """What is held before a step, and what torch's allocator is asked for at its peak."""
    states = [value for state in optimizer.state.values() for value in state.values()]
    held = [*module.parameters(), *module.buffers(), *states, *others]
    local = [getattr(tensor, "_local_tensor", tensor).untyped_storage() for tensor in held]
    before = sum({storage._cdata: storage.nbytes() for storage in local}.values())
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    assert profile.profiler is not None
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return before + max(itertools.accumulate(sizes))


def numbered_vector(number: int) -> tuple[Any, int]:
    """A vector that the number decides, and the sign of its first value."""
    values = np.random.default_rng(number).normal(size=4).astype("float32")
    return values, int(values[0] > 0)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for the order in which a CPU adds: float32 keeps 7 digits, layers cost 1 or 2."""
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    """All weights and buffers by the same names, equal to the bit: saving computes nothing."""
    left, right = one.state_dict(), other.state_dict()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def assert_same_predictions(got: list[Any], expected: list[Any]) -> None:
    """The same answers, with the same figures but for the order in which a CPU adds."""
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            number = isinstance(value, float)
            assert one[name] == (pytest.approx(value, rel=1e-4, abs=1e-5) if number else value)


def require_precision(precision: str) -> None:
    """Skip the test, with the reason, where this CPU cannot compute in a half precision."""
    reason = _tried(precision)
    if reason is not None:
        pytest.skip(f"this CPU cannot compute in {precision}: {reason}")


@lru_cache
def _tried(precision: str) -> str | None:
    return why_not(precision)
