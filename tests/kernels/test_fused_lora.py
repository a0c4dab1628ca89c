"""The fused LoRA layer equals peft's, in outputs and in gradients, and stays peft's in all else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from surefit.kernels.fused_lora import fuse_adapters


def _model(bias: bool, dtype: torch.dtype = torch.float64, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 9, bias), nn.Tanh(), nn.Linear(9, 4, bias))
    model = nn.ModuleDict({"body": body}).to(dtype)
    config = LoraConfig(r=3, target_modules=["0", "2"], **settings)
    inject_adapter_in_model(config, model, adapter_name="default")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.normal_()
    return model.to(dtype)


def _run(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    out = model["body"](x)  # type: ignore[index]
    (out**2).sum().backward()
    assert x.grad is not None
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return out, {**grads, "x": x.grad}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
@pytest.mark.parametrize("shape", [(5, 6), (2, 3, 6), (1, 1, 1, 6)])
def test_equal_to_peft(bias: bool, dtype: torch.dtype, near: float, shape: tuple[int, ...]) -> None:
    model = _model(bias, dtype)
    x = torch.randn(shape, dtype=dtype)
    expected = _run(model, x)
    assert fuse_adapters(model, "default") == 2
    for tried in (model, copy.deepcopy(model)):
        out, grads = _run(tried, x)
        torch.testing.assert_close(out, expected[0], rtol=near, atol=near)
        assert grads.keys() == expected[1].keys()
        for name, grad in grads.items():
            torch.testing.assert_close(grad, expected[1][name], rtol=near, atol=near)
    assert not any("body.0.base" in name for name in grads)  # frozen weights get no gradient


def test_the_output_may_be_changed_in_place() -> None:
    model, x = _model(True), torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    fuse_adapters(model, "default")
    layer = model["body"][0]  # type: ignore[index]
    layer(x).mul_(2.0).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("settings", [{"lora_dropout": 0.1}, {"use_dora": True}])
def test_other_kinds_are_left_to_peft(settings: dict[str, Any]) -> None:
    assert fuse_adapters(_model(True, **settings), "default") == 0


def test_switched_off_and_merged_adapters_go_peft_s_way() -> None:
    model, x = _model(True), torch.randn(2, 6, dtype=torch.float64)
    with_adapter = model["body"](x)  # type: ignore[index]
    fuse_adapters(model, "default")
    layers = [model["body"][0], model["body"][2]]  # type: ignore[index]
    for layer in layers:
        layer.enable_adapters(False)
    plain = model["body"](x)  # type: ignore[index]
    assert not torch.allclose(plain, with_adapter)
    for layer in layers:
        layer.enable_adapters(True)
        layer.merge()
    torch.testing.assert_close(model["body"](x), with_adapter)  # type: ignore[index]
