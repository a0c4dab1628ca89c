"""Models too large for a process: planned without weights, read by shares, drawn alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from fake_hub import serve_hub
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import surefit
from builders import mostly_slow
from surefit.inputs.encoder import Encoder
from surefit.inputs.tokenizer import train_tokenizer
from surefit.models.load_shards import (
    build_empty,
    build_late,
    draw_weight,
    fill_shards,
    late_weights,
    whole_bytes,
)
from surefit.models.model_source import WeightLimits
from surefit.models.pretrained import open_pretrained
from surefit.models.sharding import Skeleton, unique_tensors
from surefit.tasks import TASKS

ROOT = Path(__file__).parents[2]
SIZES = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
CAUSAL = TASKS["causal-lm"].head


def _write(folder: Path, config: transformers.PreTrainedConfig) -> int:
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return sum(4 * weight.numel() for weight in model.parameters())


def test_a_model_that_is_too_large_is_built_without_values(tmp_path: Path) -> None:
    size = _write(tmp_path, transformers.LlamaConfig(**SIZES, **HEADS))
    assert whole_bytes(tmp_path) == size
    fits = open_pretrained(str(tmp_path), False, False, None, WeightLimits(size))
    assert fits.loads == "whole"
    source = open_pretrained(str(tmp_path), False, False, None, WeightLimits(size - 1))
    assert source.loads == "late"
    assert source.weightless
    built = source.build(CAUSAL, Encoder("causal-lm", {}))
    assert "its shard when training starts" in built.findings[0].message
    assert all(weight.is_meta for weight in built.module.parameters())
    assert not any(buffer.is_meta for buffer in built.module.buffers())
    late = late_weights(built.module)
    assert len(late) == len(built.module.state_dict())


def test_weights_that_transformers_converts_are_loaded_whole(tmp_path: Path) -> None:
    _write(tmp_path, transformers.MixtralConfig(**SIZES, **HEADS, num_local_experts=2))
    source = open_pretrained(str(tmp_path), False, False, None, WeightLimits(0))
    built = source.build(CAUSAL, Encoder("causal-lm", {}))
    assert "builds the model whole" in built.findings[0].message
    assert late_weights(built.module) is None
    assert not any(weight.is_meta for weight in built.module.parameters())


def test_embeddings_are_enlarged_for_the_tokenizer(tmp_path: Path) -> None:
    _write(tmp_path, transformers.LlamaConfig(**SIZES, **HEADS))
    auto, config = transformers.AutoModelForCausalLM, transformers.LlamaConfig(**SIZES, **HEADS)
    built = build_late(auto, config, tmp_path, range(64), False)
    assert built.added_tokens == range(61, 64)
    assert [found.code for found in built.findings] == ["SF307"]
    late = late_weights(built.module)
    template = Skeleton(built.module).module
    fill_shards(built.module, late, "cpu", 0, template)
    expected = auto.from_pretrained(tmp_path).state_dict()
    for name, weight in built.module.state_dict().items():
        rows = len(expected[name])
        assert torch.equal(weight[:rows], expected[name]), name
        assert len(weight) == rows or 0.01 < weight[rows:].std() < 0.04


def test_folder_without_safetensors_is_loaded_whole(tmp_path: Path) -> None:
    _write(tmp_path, transformers.LlamaConfig(**SIZES, **HEADS))
    (tmp_path / "model.safetensors").rename(tmp_path / "other.bin")
    config = transformers.LlamaConfig(**SIZES, **HEADS)
    auto = transformers.AutoModelForCausalLM
    assert build_late(auto, config, tmp_path, None, False) is None


def _run(*command: object, **more: str) -> str:
    paths = os.pathsep.join(map(str, (ROOT / "tests", ROOT, ROOT / "bench")))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **more}
    called = [sys.executable, *map(str, command)]
    done = subprocess.run(called, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.processes
def test_shares_are_those_of_from_pretrained(tmp_path: Path) -> None:
    lines = [
        line.split() for line in _run("tests/models/load_shards_script.py", tmp_path).splitlines()
    ]
    assert [words[0] for words in lines] == ["llama", "gpt2", "bert", "t5"]
    assert lines[2][2:] == ["bert.pooler.dense.weight", "classifier.weight"]  # drawn, as BERT does


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_no_process_holds_the_model(tmp_path: Path) -> None:
    told = _run("bench/shard_memory.py", "--megabytes", 80, "--processes", 4, "--no-docs")
    share = {line.split("|")[1].strip(): line.split("|")[4] for line in told.splitlines()[2:]}
    assert float(share["load"]) < 0.6  # a quarter of it, and what the allocator keeps


DRAWN: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
}
DRAWN |= {"num_attention_heads": 4, "vocab_size": 257}
SPREAD = 0.2
"""Largest difference of two spreads, as a share: that of 1,000 draws differs by 2 %."""

CASES: dict[str, tuple[str, transformers.PreTrainedConfig]] = {
    "llama": ("CausalLM", transformers.LlamaConfig(**DRAWN)),
    "llama, not tied": (
        "CausalLM",
        transformers.LlamaConfig(**DRAWN, tie_word_embeddings=False),
    ),
    "gpt2": (
        "CausalLM",
        transformers.GPT2Config(vocab_size=257, n_embd=48, n_layer=3, n_head=4, n_positions=64),
    ),
    "mixtral": ("CausalLM", transformers.MixtralConfig(**DRAWN, num_local_experts=3)),
    "bert": ("SequenceClassification", transformers.BertConfig(**DRAWN)),
    # Models that set the weights of the layers inside of them, to spreads of their own.
    "t5": (
        "SequenceClassification",
        transformers.T5Config(
            vocab_size=257, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4
        ),
    ),
    "clip": (
        "ImageClassification",
        transformers.CLIPConfig(vision_config={**DRAWN, "image_size": 32, "patch_size": 8}),
    ),
}


def _draw_all(template: nn.Module, seed: int = 0) -> dict[str, torch.Tensor]:
    weights = unique_tensors(template).items()
    return {
        first: draw_weight(template, names, seed)
        for first, (weight, names) in weights
        if weight.is_meta
    }


@pytest.mark.parametrize("name", mostly_slow(CASES, every=3))
def test_drawn_weights_spread_as_those_of_the_model(name: str) -> None:
    kind, config = CASES[name]
    auto = getattr(transformers, f"AutoModelFor{kind}")
    torch.manual_seed(0)
    whole = auto.from_config(config).state_dict()
    drawn = _draw_all(build_empty(auto, config, False))
    assert drawn
    for each, weight in drawn.items():
        expected = whole[each]
        assert weight.shape == expected.shape
        if expected.numel() < 1000 or not expected.std():
            torch.testing.assert_close(weight.std(), expected.std(), rtol=1, atol=1e-6)
            torch.testing.assert_close(weight.mean(), expected.mean(), rtol=0, atol=0.3)
        else:
            torch.testing.assert_close(weight.std(), expected.std(), rtol=SPREAD, atol=0), each


def test_a_weight_depends_on_the_seed_and_its_name_alone() -> None:
    template = build_empty(transformers.AutoModelForCausalLM, CASES["llama"][1], False)
    torch.manual_seed(1)
    first = _draw_all(template)
    torch.manual_seed(2)
    again, other = _draw_all(template), _draw_all(template, seed=1)
    drawn = [each for each, weight in first.items() if weight.std()]
    assert all(torch.equal(first[each], again[each]) for each in first)
    assert not any(torch.equal(first[each], other[each]) for each in drawn)
    alike = [each for each in drawn if torch.equal(first[each], first[drawn[-1]])]
    assert alike == [drawn[-1]]  # no layer is a copy of another
    assert all(weight.is_meta for weight in template.parameters())


ROWS = [{"text": f"red blue green {n} red"} for n in range(40)]
NAME = "owner/llama"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    tokenizer = train_tokenizer([row["text"] for row in ROWS], 300)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes))
    for each in (model, tokenizer):
        each.save_pretrained(tmp_path / "hub" / NAME)
    return str(tmp_path / "hub" / NAME)


def check(folder: str, **options: Any) -> tuple[Any, set[str]]:
    plan = surefit.check(model=folder, data=ROWS, task="causal-lm", **options)
    return plan, {found.code for found in plan.findings}


@pytest.mark.parametrize("from_scratch", [True, False])
def test_plan_for_another_device_loads_no_weights(folder: str, from_scratch: bool) -> None:
    sizes = {"max_memory_gb": 0.001, "device_memory_gb": 80}
    plan, codes = check(folder, from_scratch=from_scratch, **sizes)
    assert plan.ok
    assert "SF409" in codes
    assert all(weight.is_meta for weight in plan.job.pipeline.module.parameters())
    assert plan.fit.fits


def test_a_config_in_bf16_is_planned_as_it_is_trained(folder: str) -> None:
    path = Path(folder)
    known, _ = check(folder, device_memory_gb=80)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    (path / "model.safetensors").unlink()
    plan, codes = check(folder, device_memory_gb=80)
    assert "SF407" in codes
    for part in ("weights", "gradients", "optimizer"):
        assert plan.fit.parts[part] == known.fit.parts[part]
    drawn, _ = check(folder, from_scratch=True)
    assert {w.dtype for w in drawn.job.pipeline.module.parameters()} == {torch.float32}


def test_on_this_machine_it_does_not_fit(folder: str) -> None:
    plan, codes = check(folder, max_memory_gb=0.001)
    assert {"SF400", "SF409"} <= codes
    assert not plan.ok


@pytest.mark.slow
def test_plan_for_another_device_downloads_no_weights(folder: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    arguments = ["--data", str(tmp_path / "rows.jsonl"), "--task", "causal-lm", "--model", NAME]
    arguments += ["--processes", "8", "--set", "parallel=fsdp"]
    arguments += ["--device", "a100-80gb", "--max-memory-gb", "0.001"]
    with serve_hub(tmp_path / "hub") as hub:
        env = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
        env |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
        out = _run("-m", "surefit", "check", *arguments, **env)
        assert "SF409" in out
        assert "config.json" in hub.downloaded
        assert "model.safetensors" not in hub.downloaded
