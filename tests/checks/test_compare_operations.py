"""Our operations compute what the plain ones do, in every precision, and on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from builders import require_precision
from surefit.checks import compare_operations
from surefit.checks.compare_operations import OPERATIONS, compare

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
