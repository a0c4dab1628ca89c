"""The command that the field reports ran, as they wrote it, on rows of up to 512 tokens."""

from __future__ import annotations

import json
import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from builders import WORDS, write_jsonl
from surefit.cli import run as command
from surefit.inputs.tokenizer import train_tokenizer

ARGUMENTS = shlex.split(
    "train --data train.jsonl --model qwen --epochs 10 --augmentation_factor 3 --lora_r 16 "
    "--batch_size 4"
)
FEWER_TOKENS = ["--set", "generate.rows=8", "--set", "generate.max_new_tokens=6"]


def seed_rows(count: int) -> list[dict[str, str]]:
    """Questions about lists of 1 to 480 words; the answer is the first word."""
    choose = random.Random(0)
    rows = []
    for place in range(count):
        words = choose.choices(WORDS, k=choose.randint(1, 480) if place % 2 else 480 // (place + 1))
        words = words or ["red"]
        rows.append({"input": f"First word of list {place}? {' '.join(words)}", "target": words[0]})
    return rows


def save_qwen(folder: Path, rows: list[dict[str, str]]) -> None:
    """A Qwen3 of two small layers, from its config, with a tokenizer of the rows."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = train_tokenizer((row["input"] for row in rows), 600)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The working folder has train.jsonl and the model."""
    monkeypatch.chdir(tmp_path)
    made = seed_rows(1000)
    write_jsonl(tmp_path / "train.jsonl", made)
    save_qwen(tmp_path / "qwen", made)
    return made


def test_the_command_as_written(rows: list[dict[str, str]], capsys: Any) -> None:
    more = ["--max-steps", "6", "--output", "run", *FEWER_TOKENS]
    assert command([*ARGUMENTS, *more]) == 0
    said = " ".join(capsys.readouterr().err.split())
    for told in (
        "qwen: ",
        "device c",
        "rows 1,000: 900 training, 100 validation, 0 dropped",
        "augmented 900 training rows × 3 = 2,700 after augmentation",
        " labelled tokens (",
        "steps 675 per epoch, 6 in total",
    ):
        assert told in said
    assert re.search(r"trainable [\d,]+ parameters \(\d+\.\d+%\)", said)
    assert re.search(r"epoch 1/10 step 6 loss \d.* eval loss \d.* token_f1 \d\.\d+", said)
    assert said.count(" prompt First word of list") == 3
    plan = json.loads(Path("run/plan.json").read_text())
    assert plan["batches"]["count"] == 675
    assert plan["batches"]["longest"] == [4, 512]
    events = [json.loads(line) for line in Path("run/events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["step"] * 6 + ["eval"]
    assert {"token_f1", "exact_match", "rouge_l"} <= set(events[-1]["metrics"])
    assert {"prompt", "expected", "got"} <= set(events[-1]["samples"][0])


def test_tokenised_rows_are_taken_as_they_are(
    rows: list[dict[str, str]], tmp_path: Path, capsys: Any
) -> None:
    ids = [[5 + place % 50, 6, 7 + place % 90] for place in range(40)]
    tokenized = [{"input_ids": row, "labels": [-100, *row[1:]]} for row in ids]
    write_jsonl(tmp_path / "ids.jsonl", tokenized)
    start = ["train", "--data", "ids.jsonl", "--model", "qwen", "--lora_r", "16"]
    assert command([*start, "--max-steps", "2", "--output", "run"]) == 0
    assert "sft (input_ids = input_ids, labels = labels)" in capsys.readouterr().err
    assert command([*start, "--augmentation_factor", "3", "--output", "other"]) == 2
    assert "no prompt or messages as text to change" in capsys.readouterr().err
