"""Frozen matrices of a LoRA run are held in the lower precision; files keep their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from safetensors.torch import load_file
from torch import nn

import surefit
from builders import echo_rows, require_precision, save_tiny_base, write_jsonl
from surefit.models.lora import base_fingerprint, frozen_matrices, lower_frozen, may_lower
from surefit.models.model_source import ModelSource
from surefit.speed.fused_lora import LowRankLinear, fuse_adapters
from surefit.speed.numerics import TOLERANCES, relative_difference

DATA = echo_rows(40)
RUN: dict[str, Any] = {"data": DATA, "lora": {"r": 4}, "generate": {"rows": 0}}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_base(tmp_path_factory.mktemp("base"), DATA)


class Block(nn.Module):
    """Two adapted matrices, one that is not adapted, an embedding tied to a head, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 64)
        self.first, self.second = nn.Linear(64, 96), nn.Linear(96, 64)
        self.between = nn.Linear(96, 96, bias=False)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.second(self.between(self.first(self.embedding(ids)).relu()))
        return self.head(self.norm(hidden))


def adapted(**settings: Any) -> Any:
    torch.manual_seed(0)
    model = Block()
    config = LoraConfig(r=4, target_modules=["first", "second"], **settings)
    inject_adapter_in_model(config, model, adapter_name="default")
    model.peft_config = {"default": config}  # type: ignore[assignment]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_()
    fuse_adapters(model, "default")
    return model


def step(model: Any, dtype: torch.dtype) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
    """Loss, gradients, and the bytes of copies of frozen weights kept for the backward pass."""
    ids = torch.arange(48).view(3, 16) % 32
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    shapes = {tuple(p.shape) for p in frozen_matrices(model) if p.ndim == 2}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in parameters and {tuple(tensor.shape), tuple(tensor.shape[::-1])} & shapes:
            kept[place] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with torch.autocast("cpu", dtype):
            logits = model(ids)
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten())
    model.zero_grad()
    loss.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), grads, sum(kept.values())


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_no_copies_are_kept_and_the_results_are_those_of_autocast(
    name: str, monkeypatch: Any
) -> None:
    require_precision(name)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[name]
    close = TOLERANCES[str(dtype).removeprefix("torch.")]
    model = adapted()
    loss, grads, copies = step(model, dtype)  # float32 weights: peft's own operation
    assert copies == 2 * (96 * 64 + 96 * 96)  # the input of the first has no gradient
    digest = base_fingerprint(model)
    taken = []
    operation = LowRankLinear
    apply = operation.apply
    monkeypatch.setattr(operation, "apply", lambda *given: taken.append(1) or apply(*given))
    lower_frozen(model, dtype)
    assert base_fingerprint(model) == digest
    halves = {n for n, p in model.named_parameters() if p.dtype == dtype}
    assert halves == {
        "first.base_layer.weight",
        "first.base_layer.bias",
        "second.base_layer.weight",
        "second.base_layer.bias",
        "between.weight",
    }
    lowered, found, copies = step(model, dtype)
    assert copies == 0
    assert len(taken) == 2
    assert relative_difference(lowered, loss) <= close.loss
    assert found.keys() == grads.keys()
    assert all(g.dtype == torch.float32 for g in found.values())
    for each, gradient in grads.items():
        assert relative_difference(found[each], gradient) <= close.gradients, each


def test_only_a_base_that_is_found_again_is_cast() -> None:
    model = adapted()
    named = ModelSource("someone/base", "pretrained", lambda head, encoder: None)  # type: ignore[arg-type,return-value]
    assert may_lower(model, named)
    assert not may_lower(model, ModelSource("tiny:llama", "tiny", named.build))
    assert not may_lower(adapted(use_dora=True), named)
    assert not may_lower(Block(), named)


def test_the_plan_holds_frozen_matrices_in_two_bytes(base: str) -> None:
    plain = surefit.check(model=base, **RUN, device_memory_gb=16, precision="fp32")
    lowered = surefit.check(model=base, **RUN, device_memory_gb=16)
    assert plain.choices.frozen is None
    assert lowered.choices.frozen == "bfloat16"
    frozen = sum(p.numel() for p in frozen_matrices(plain.job.pipeline.module))
    assert plain.fit.parts["weights"] - lowered.fit.parts["weights"] == 2 * frozen
    unnamed = surefit.check(**RUN, model="tiny:llama", device_memory_gb=16)
    assert unnamed.choices.frozen is None


@pytest.mark.slow
def test_a_run_is_saved_resumed_and_evaluated_as_ever(base: str, tmp_path: Path) -> None:
    require_precision("bf16")
    data = str(write_jsonl(tmp_path / "rows.jsonl", DATA))
    options = {**RUN, "data": data, "model": base, "precision": "bf16", "schedule": "constant"}
    surefit.train(**options, max_steps=3, output=str(tmp_path / "cut"))
    other = surefit.train(**options, max_steps=6, output=str(tmp_path / "other"))
    assert other.plan["choices"]["frozen"] == "bfloat16"
    resumed = surefit.train(resume=tmp_path / "cut", max_steps=6)
    saved = [
        load_file(run.path / "model" / "adapter_model.safetensors") for run in (other, resumed)
    ]
    assert all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])
    assert all(tensor.dtype == torch.float32 for tensor in saved[0].values())
    events = [e for e in resumed.history if e["event"] == "eval"]
    again = surefit.evaluate(tmp_path / "cut")
    assert again["loss"] == events[-1]["metrics"]["loss"]
    facts = json.loads((resumed.path / "model" / "base.json").read_text())
    loaded = surefit.load(tmp_path / "cut")
    assert facts["fingerprint"] == base_fingerprint(loaded)
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
