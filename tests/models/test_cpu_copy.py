"""A copy on the CPU takes nothing of the device, and no copy is made where none is read into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import surefit
from builders import MeanPool, echo_rows, feature_rows
from surefit.models.cpu_copy import cpu_copy
from surefit.models.save_model import load_model


def test_weights_and_buffers_of_a_device_are_copied_to_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with torch.device("meta"):  # which stands for a device without any memory left
        module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2), nn.BatchNorm1d(2))
    module[0].weight = module[1].weight
    module[1].bias.requires_grad_(False)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: torch.ones(self.shape))
    copied = cpu_copy(module)
    assert {tensor.device.type for tensor in copied.state_dict().values()} == {"cpu"}
    assert all(tensor.is_meta for tensor in module.state_dict().values())
    assert copied[0].weight is copied[1].weight
    assert not copied[1].bias.requires_grad
    assert copied[1].weight.requires_grad


def test_a_copy_of_a_module_on_the_cpu_is_another_one() -> None:
    module = MeanPool()
    copied = cpu_copy(module)
    with torch.no_grad():
        next(copied.parameters()).add_(1.0)
    assert not torch.equal(next(copied.parameters()), next(module.parameters()))


@pytest.mark.parametrize(
    "kind", ["own", "pretrained", pytest.param("adapted", marks=pytest.mark.slow)]
)
def test_a_model_is_copied_only_if_its_weights_are_read_into_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    given: dict[str, Any] = {}

    def spy_at(place: str) -> None:
        def spy(folder: Path, task: Any, code: Any, module: Any = None, **more: Any) -> Any:
            given[place] = module
            return load_model(folder, task, code, module, **more)

        monkeypatch.setattr(f"surefit.{place}.load_model", spy)

    options: dict[str, Any] = {"data": feature_rows(40), "model": MeanPool()}
    if kind != "own":
        options = {"data": echo_rows(20), "model": "tiny:llama", "generate": {"rows": 0}}
    if kind == "adapted":
        options["lora"] = {"r": 2}
    for place in ("training.rehearse", "plan.probe_model"):
        spy_at(place)
    again: dict[str, Any] = {"rehearse": True, "probes": "all"}
    assert surefit.check(output=str(tmp_path / "run"), batch_size=2, **again, **options).ok
    assert {place: module is not None for place, module in given.items()} == {
        "training.rehearse": kind == "own",
        "plan.probe_model": kind == "own",
    }
