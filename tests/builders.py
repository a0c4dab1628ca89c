"""Small real things to train on, built on the spot."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from surefit.checks.half_precision_trial import why_not
from surefit.data.open_data import open_table
from surefit.encode.encoded_row import Encoded
from surefit.encode.encoder import Encoder
from surefit.encode.text.batch_tokenizing import tokenize_rows
from surefit.errors import FindingError
from surefit.findings import Finding

WORDS = ["red", "blue", "green", "one", "two", "three", "cat", "dog", "tree", "sun", "moon"]


def mostly_slow(cases: Iterable[Any], every: int) -> list[Any]:
    """Parameters of a test: each n-th is in the default tier, the others are slow."""
    return [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.slow)
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


def fault_of(data: Any) -> Finding:
    """The one Finding that opening the data ends with."""
    with pytest.raises(FindingError) as caught:
        open_table(data)
    assert len(caught.value.findings) == 1
    return caught.value.findings[0]


def encode_one(encode: Any, row: Mapping[str, Any], encoder: Encoder) -> Encoded:
    """What a task's `encode` makes of one row, its texts tokenized."""
    encoding = encode(row, encoder)
    return encoding.finish(tokenize_rows([encoding], encoder.tokenizer)[0])


def save_tiny_base(folder: Path, rows: list[dict[str, str]]) -> str:
    """A small model with its tokenizer in a folder of its own, as if it were a trained one."""
    import surefit

    job = surefit.check(data=rows, model="tiny:llama", generate={"rows": 0}).job
    assert job is not None
    job.pipeline.module.save_pretrained(folder)  # type: ignore[operator]
    job.pipeline.encoder.tokenizer.save_pretrained(folder)
    return str(folder)


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
