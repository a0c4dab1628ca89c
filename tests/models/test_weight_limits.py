"""A model larger than this machine's memory is planned from its config, not loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import surefit
from surefit.encode.text.tokenizer import train_tokenizer

ROWS = [{"text": f"red blue green {n} red"} for n in range(40)]
LIMITED: dict[str, Any] = {"data": ROWS, "task": "causal-lm", "max_memory_gb": 0.001}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    tokenizer = train_tokenizer([row["text"] for row in ROWS], 300)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=256, intermediate_size=512, num_hidden_layers=2
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def codes(plan: Any) -> set[str]:
    return {found.code for found in plan.findings}


@pytest.mark.parametrize("from_scratch", [True, False])
def test_plan_for_another_device_loads_no_weights(folder: str, from_scratch: bool) -> None:
    plan = surefit.check(model=folder, from_scratch=from_scratch, device_memory_gb=80, **LIMITED)
    assert plan.ok
    assert "SF409" in codes(plan)
    assert plan.job is not None
    assert all(weight.is_meta for weight in plan.job.pipeline.module.parameters())
    assert plan.fit is not None
    assert plan.fit.fits


def test_a_config_in_bf16_is_planned_as_it_is_trained(folder: str) -> None:
    path = Path(folder)
    known = surefit.check(model=folder, data=ROWS, task="causal-lm", device_memory_gb=80)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    (path / "model.safetensors").unlink()
    plan = surefit.check(model=folder, data=ROWS, task="causal-lm", device_memory_gb=80)
    assert "SF407" in codes(plan)
    assert plan.fit is not None
    assert known.fit is not None
    for part in ("weights", "gradients", "optimizer"):
        assert plan.fit.parts[part] == known.fit.parts[part]
    drawn = surefit.check(model=folder, data=ROWS, task="causal-lm", from_scratch=True)
    assert drawn.job is not None
    assert {w.dtype for w in drawn.job.pipeline.module.parameters()} == {torch.float32}


def test_on_this_machine_it_does_not_fit(folder: str) -> None:
    plan = surefit.check(model=folder, **LIMITED)
    assert {"SF400", "SF409"} <= codes(plan)
    assert not plan.ok


def test_model_that_fits_is_loaded(folder: str) -> None:
    plan = surefit.check(model=folder, data=ROWS, task="causal-lm", device_memory_gb=80)
    assert plan.ok
    assert "SF409" not in codes(plan)
