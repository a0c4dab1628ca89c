"""A model on the hub that is too large for a process: what of it is downloaded, and by whom."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, serve_hub
from transformers import LlamaConfig, LlamaForCausalLM

from surefit.encode.text.tokenizer import train_tokenizer

TEXTS = [f"red blue green {n} red" for n in range(40)]
NAME = "owner/llama"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    folder, tokenizer = tmp_path / "hub" / NAME, train_tokenizer(TEXTS, 300)
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=256, intermediate_size=512)
    config.num_hidden_layers = 2
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    with serve_hub(tmp_path / "hub") as served:
        yield served


def run(hub: FakeHub, folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "surefit", *arguments, "--data", "rows.jsonl"]
    command += ["--task", "causal-lm", "--model", NAME]
    env = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(folder / "home")}
    env |= {"HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
    env.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_plan_for_another_device_downloads_no_weights(hub: FakeHub, tmp_path: Path) -> None:
    arguments = ("check", "--processes", "8", "--set", "parallel=fsdp")
    out = run(hub, tmp_path, *arguments, "--device", "a100-80gb", "--max-memory-gb", "0.001")
    assert "SF409" in out
    assert "config.json" in hub.downloaded
    assert "model.safetensors" not in hub.downloaded


@pytest.mark.slow
def test_model_that_fits_is_downloaded(hub: FakeHub, tmp_path: Path) -> None:
    run(hub, tmp_path, "check")
    assert "model.safetensors" in hub.downloaded
