"""QLoRA: frozen weights in 4 bits, on a CPU here; planned, trained and resumed like any LoRA."""

from __future__ import annotations

import importlib.util
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import surefit
from builders import echo_rows, save_tiny_base, stop_at
from surefit import cli
from surefit.models import lora_files, quantize
from surefit.models.quantize import num_weights, quantization_tensors
from surefit.models.sharding import can_shard

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)
DATA = echo_rows(40)
LORA = {"lora": {"r": 4, "quantize": "4bit"}, "generate": {"rows": 0}}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A trained transformers model."""
    return save_tiny_base(tmp_path_factory.mktemp("base"), DATA)


def test_the_plan_counts_four_bits_and_their_scales(base: str) -> None:
    plain, quantized = (
        surefit.check(data=DATA, model=base, **options)
        for options in ({**LORA, "lora": {"r": 4}}, LORA)
    )
    assert quantized.ok
    module = quantized.job.pipeline.module
    assert quantized.as_dict()["model"]["parameters"] == plain.as_dict()["model"]["parameters"]
    packed = [p for p in module.parameters() if p.dtype == torch.uint8]
    assert len(packed) == quantized.as_dict()["model"]["lora"]["layers"]
    stored = [*module.parameters(), *module.buffers(), *quantization_tensors(module)]
    assert quantized.fit.parts["weights"] == sum(tensor.nbytes for tensor in stored)
    saved = sum(num_weights(p) * 4 - p.nbytes for p in packed)
    scales = sum(tensor.nbytes for tensor in quantization_tensors(module))
    assert plain.fit.parts["weights"] - quantized.fit.parts["weights"] == saved - scales
    copied, _ = quantized.job.pipeline.on_meta
    held = [*copied.parameters(), *quantization_tensors(copied)]
    assert all(tensor.is_meta for tensor in held)
    assert not any(tensor.is_meta for tensor in quantization_tensors(module))


def test_a_config_alone_is_planned_in_four_bits(base: str, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "config", ignore=shutil.ignore_patterns("*.safetensors"))
    options = {"data": DATA, **LORA, "device_memory_gb": 16}
    known, planned = (
        surefit.check(model=model, **options) for model in (base, str(tmp_path / "config"))
    )
    assert planned.ok
    assert planned.fit.parts["weights"] == known.fit.parts["weights"]


def test_advice_does_not_divide_four_bit_weights(base: str) -> None:
    plan = surefit.check(data=DATA, model=base, **LORA, max_memory_gb=0.2)
    (found,) = (each for each in plan.findings if each.code == "SF400")
    assert "batch_size=" in found.fix
    assert "fsdp" not in found.fix
    assert not can_shard(plan.job.pipeline.module)  # type: ignore[union-attr]


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_bit(base: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": DATA, "model": base, "max_steps": 6, **LORA}
    whole = surefit.train(**options, save_every=2, output=str(tmp_path / "whole"))

    with pytest.raises(surefit.SurefitError, match="saved"):
        surefit.train(
            **options,
            save_every=2,
            callbacks=[stop_at(3, signal.SIGINT)],
            output=str(tmp_path / "cut"),
        )
    resumed = surefit.train(resume=tmp_path / "cut", data=DATA)
    both = [load_file(run.path / "model" / "adapter_model.safetensors") for run in (whole, resumed)]
    assert all(torch.equal(both[0][name], both[1][name]) for name in both[0])
    assert surefit.evaluate(resumed, DATA)["loss"] > 0


def test_what_is_evaluated_is_what_was_trained(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"data": DATA[10:], "eval_data": DATA[:10], "max_steps": 4, **LORA}
    run = surefit.train(model=base, output=str(tmp_path / "run"), **asked)
    measured = [event["metrics"]["loss"] for event in run.history if event["event"] == "eval"]
    evaluated = surefit.evaluate(run.path, DATA[:10])["loss"]
    assert evaluated == pytest.approx(measured[-1], abs=1e-6)
    loaded = surefit.load(run.path)
    module = loaded[0] if isinstance(loaded, tuple) else loaded
    assert any(p.dtype == torch.uint8 for p in module.parameters())
    # The weights as they are in their files give another loss.
    monkeypatch.setattr(lora_files, "base_quantization", lambda folder: None)
    plain = surefit.evaluate(run.path, DATA[:10])["loss"]
    assert abs(plain - measured[-1]) > 1e-4
    monkeypatch.undo()
    merged = tmp_path / "merged"
    assert not cli.run(["export", str(run.path), str(merged), "--merge"])
    weights = load_file(merged / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    monkeypatch.setattr(quantize.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(surefit.UsageError, match="was trained on 4-bit weights") as caught:
        surefit.evaluate(run.path, DATA[:10])
    assert "--merge" in caught.value.fix


def test_without_bitsandbytes_it_is_refused(base: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(quantize.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(surefit.UsageError, match="needs the package bitsandbytes"):
        surefit.check(data=DATA, model=base, **LORA)
