"""Weights that are read by shares, once a model is divided over processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from surefit.encode.encoder import Encoder
from surefit.models.gathered_model import Skeleton
from surefit.models.load_shards import build_late, fill_divided, late_weights, whole_bytes
from surefit.models.model_source import WeightLimits
from surefit.models.pretrained import open_pretrained
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
    assert not fits.late
    source = open_pretrained(str(tmp_path), False, False, None, WeightLimits(size - 1))
    assert source.late
    assert source.weightless
    built = source.build(CAUSAL, Encoder("causal-lm", {}))
    assert [found.code for found in built.findings] == ["SF870"]
    assert all(weight.is_meta for weight in built.module.parameters())
    assert not any(buffer.is_meta for buffer in built.module.buffers())
    late = late_weights(built.module)
    assert late is not None
    assert len(late.by_name(built.module)) == len(built.module.state_dict())


def test_weights_that_transformers_converts_are_loaded_whole(tmp_path: Path) -> None:
    _write(tmp_path, transformers.MixtralConfig(**SIZES, **HEADS, num_local_experts=2))
    source = open_pretrained(str(tmp_path), False, False, None, WeightLimits(0))
    built = source.build(CAUSAL, Encoder("causal-lm", {}))
    assert [found.code for found in built.findings] == ["SF870"]
    assert "builds the model whole" in built.findings[0].message
    assert late_weights(built.module) is None
    assert not any(weight.is_meta for weight in built.module.parameters())


def test_embeddings_are_enlarged_for_the_tokenizer(tmp_path: Path) -> None:
    _write(tmp_path, transformers.LlamaConfig(**SIZES, **HEADS))
    auto, config = transformers.AutoModelForCausalLM, transformers.LlamaConfig(**SIZES, **HEADS)
    built = build_late(auto, config, tmp_path, range(64), False)
    assert built is not None
    assert built.added_tokens == range(61, 64)
    assert [found.code for found in built.findings] == ["SF307"]
    late = late_weights(built.module)
    assert late is not None
    template = Skeleton(built.module).module
    fill_divided(built.module, late.by_name(built.module), "cpu", 0, template)
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


def _run(*command: object) -> str:
    paths = os.pathsep.join(map(str, (ROOT / "tests", ROOT, ROOT / "bench")))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    called = [sys.executable, *map(str, command)]
    done = subprocess.run(called, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.processes
def test_shares_are_those_of_from_pretrained(tmp_path: Path) -> None:
    lines = [line.split() for line in _run("tests/load_shards_script.py", tmp_path).splitlines()]
    assert [words[0] for words in lines] == ["llama", "gpt2", "bert", "t5"]
    assert lines[2][2:] == ["bert.pooler.dense.weight", "classifier.weight"]  # drawn, as BERT does


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_no_process_holds_the_model(tmp_path: Path) -> None:
    told = _run("bench/shard_memory.py", "--megabytes", 80, "--processes", 4, "--no-docs")
    share = {line.split("|")[1].strip(): line.split("|")[4] for line in told.splitlines()[2:]}
    assert float(share["load"]) < 0.6  # a quarter of it, and what the allocator keeps
