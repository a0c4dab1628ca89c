"""masked-lm: what is hidden, how it is drawn, and that it can be learned."""

from __future__ import annotations

import json
import random
from collections import Counter
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

import surefit
from builders import write_jsonl
from surefit.cli import run as command
from surefit.encode.encoder import Encoder
from surefit.run.checkpoints import latest_checkpoint
from surefit.tasks.masked_lm import count_targets, hide

FOLLOWS = {"cat": "dog", "sun": "moon", "red": "blue", "one": "two", "up": "down", "yes": "no"}


def paired_rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Texts in which every second word is decided by the one before it."""
    choose = random.Random(seed)
    rows = []
    for _ in range(count):
        firsts = choose.choices([*FOLLOWS], k=choose.randint(2, 5))
        rows.append({"text": " ".join(f"{word} {FOLLOWS[word]}" for word in firsts)})
    return rows


def unigram_loss(rows: list[dict[str, str]]) -> float:
    """The loss of always giving each word its share in the text."""
    counts = Counter(word for row in rows for word in row["text"].split())
    return -sum(n / counts.total() * log(n / counts.total()) for n in counts.values())


def encoder() -> Encoder:
    return Encoder("masked-lm", {}, fitted={"mask": 1, "special": [0, 1], "num_tokens": 50})


@pytest.mark.parametrize("length", [1, 3, 10, 200])
def test_what_is_hidden(length: int) -> None:
    ids = np.concatenate([[0], np.arange(2, 2 + length) % 48 + 2, [0]])
    row = {"input_ids": ids, "labels": np.where(ids < 2, -100, ids)}
    shares: Counter[str] = Counter()
    for draw in range(200):
        got = hide(row, encoder(), np.random.default_rng(draw))
        learned = got["labels"] != -100
        assert learned.sum() == count_targets(row) == max(1, round(0.15 * length))
        assert not learned[[0, -1]].any()
        assert (got["input_ids"][~learned] == ids[~learned]).all()
        assert (got["labels"][learned] == ids[learned]).all()
        shares["masked"] += int((got["input_ids"][learned] == 1).sum())
        shares["kept"] += int((got["input_ids"][learned] == ids[learned]).sum())
        shares["all"] += int(learned.sum())
    assert shares["masked"] / shares["all"] == pytest.approx(0.8, abs=0.1)
    assert shares["kept"] / shares["all"] == pytest.approx(0.1, abs=0.08)
    assert row["input_ids"] is ids


def test_learns_the_word_that_the_other_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = paired_rows(600)
    write_jsonl(tmp_path / "rows.jsonl", rows)
    arguments = ["train", "--data", "rows.jsonl", "--model", "tiny:bert", "--output", "run"]
    assert command([*arguments, "--epochs", "10", "--batch-size", "16", "--lr", "2e-3"]) == 0
    metrics = surefit.evaluate("run")
    assert metrics == surefit.evaluate("run"), "evaluation masks are fixed"
    assert metrics["loss"] < 0.5 * unigram_loss(rows)
    assert metrics["token_accuracy"] > 0.75
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]))
    capsys.readouterr()
    assert command(["predict", "run", "--text", "sun [MASK] up down"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["prediction"] == "sun moon up down"
    assert told["filled"] == ["moon"]
    folder = tmp_path / "run" / "model"
    model, tokenizer = (
        AutoModelForMaskedLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    batch = tokenizer("sun [MASK] up down", return_tensors="pt")
    with torch.no_grad():
        logits = model(**batch).logits
    hidden = batch["input_ids"][0] == tokenizer.mask_token_id
    assert tokenizer.decode(logits[0, hidden].argmax()).strip() == "moon"


def test_masks_differ_between_epochs_and_seeds() -> None:
    plan = surefit.check(data=paired_rows(40), model="tiny:bert", task="masked-lm")
    assert plan.job is not None
    assert plan.task is not None
    row = plan.job.train.row(0)
    drawn = []
    for seed, epoch in ((0, 0), (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (2, 0)):
        prepare = plan.task.preparer(plan.job.pipeline.encoder, seed)
        assert prepare is not None
        drawn.append(prepare(row, epoch, 0, 0)["labels"].tolist())
    assert drawn[0] == drawn[1]
    assert any(labels != drawn[0] for labels in drawn[2:5])
    assert any(labels != drawn[0] for labels in drawn[5:])


class CrashError(Exception):
    """Stands for a power cut."""


@pytest.mark.slow
def test_resumed_run_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", paired_rows(60))
    options: dict[str, Any] = {
        "data": str(data),
        "model": "tiny:bert",
        "epochs": 3,
        "batch_size": 8,
        "save_every": 5,
    }
    whole = surefit.train(output=str(tmp_path / "whole"), **options)

    def crash(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 12:
            raise CrashError

    with pytest.raises(CrashError):
        surefit.train(output=str(tmp_path / "cut"), callbacks=[crash], **options)
    cut = surefit.train(resume=tmp_path / "cut")
    events = [[{**e, "seconds": 0} for e in run.history] for run in (whole, cut)]
    assert events[0] == events[1]
    first, second = (
        load_file(latest_checkpoint(tmp_path / name / "checkpoints") / "model.safetensors")  # type: ignore[operator]
        for name in ("whole", "cut")
    )
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_a_tokenizer_without_a_mask_token_is_a_finding() -> None:
    rows = [{"input_ids": [3, 4, 5]}] * 20
    plan = surefit.check(data=rows, model="tiny:bert", task="masked-lm")
    assert [found.code for found in plan.findings if found.severity == "error"] == ["SF320"]
