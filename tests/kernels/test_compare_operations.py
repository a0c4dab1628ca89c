"""Our operations compute what the plain ones do, in every precision, and on the meta device."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from kernels import compare_operations
from kernels.compare_operations import OPERATIONS, compare
from torch import nn

from builders import require_precision
from surefit.kernels import numerics as closeness
from surefit.kernels.aligned_weights import ALIGNMENT, align_weights
from surefit.kernels.clipping import make_clipper
from surefit.kernels.numerics import largest_difference

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_on_the_cpu(name: str, precision: str) -> None:
    if precision != "fp32":
        require_precision(precision)
    result = compare(name, "cpu", DTYPES[precision])
    assert result.ok, result
    assert result.largest < result.allowed


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("name", [n for n, operation in OPERATIONS.items() if operation.on_meta])
def test_shapes_dtypes_and_devices_on_meta(name: str, precision: str) -> None:
    result = compare(name, "meta", DTYPES[precision])
    assert result.ok, result


@pytest.mark.gpu
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_on_cuda(name: str, precision: str) -> None:
    result = compare(name, "cuda", DTYPES[precision])
    assert result.ok, result


def test_a_wrong_operation_is_noticed(monkeypatch: Any) -> None:
    right = compare_operations.chunked_loss

    def too_much(hidden: Any, *rest: Any) -> Any:
        return right(hidden * 1.001, *rest)

    monkeypatch.setattr(compare_operations, "chunked_loss", too_much)
    found = compare("sparse head")
    assert not found.ok
    assert found.largest > found.allowed
    assert not found.as_dict()["ok"]


def test_another_dtype_is_noticed_on_meta(monkeypatch: Any) -> None:
    right = compare_operations.attend_by_row
    monkeypatch.setattr(compare_operations, "attend_by_row", lambda *given: right(*given).double())
    found = compare("varlen attention", "meta")
    assert not found.ok
    assert "output: float64" in found.shapes[0] or "loss" in found.shapes[0]


def unaligned(*shape: int) -> torch.Tensor:
    """Values behind two others, as in a file."""
    size = int(torch.Size(shape).numel())
    return torch.randn(size + 2)[2:].view(shape)


def test_every_weight_is_aligned_and_keeps_its_value() -> None:
    module = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 5, bias=False))
    module[2].weight = nn.Parameter(module[0].weight.data.T)  # a view of another weight
    module[0].weight.data = unaligned(3, 5)
    module[1].running_mean = unaligned(3)
    module.register_parameter("tied", module[0].weight)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    align_weights(module)
    assert all(value.data_ptr() % ALIGNMENT == 0 for value in module.state_dict().values())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.tied is module[0].weight


def test_weights_that_share_memory_still_do() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    first.weight.data = unaligned(4, 4)
    second.weight.data = first.weight.data
    align_weights(nn.ModuleList([first, second]))
    assert first.weight.data_ptr() == second.weight.data_ptr()
    assert first.weight.data_ptr() % ALIGNMENT == 0


def test_no_clipping_is_no_clipping() -> None:
    weight = torch.nn.Parameter(torch.tensor([30.0, 40.0]))
    (weight**2 / 2).sum().backward()
    assert make_clipper(Accelerator(cpu=True), None, [weight], 0.0)() == 50.0
    assert weight.grad.tolist() == [30.0, 40.0]


def test_a_difference_in_any_piece_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closeness, "AT_ONCE", 4)
    one = torch.arange(10.0).reshape(2, 5)
    other = one.clone()
    assert largest_difference(one, other) == (0.0, 9.0, 9.0)
    other[1, 0] = -20.0
    assert largest_difference(one, other) == (25.0, 9.0, 20.0)
    other[0, 0] = float("nan")
    assert math.isnan(largest_difference(one, other)[0])
