"""Which dtype is floating point, which is an integer and which is boolean, in every spelling."""

from __future__ import annotations

import pytest
import torch
from explainer.raised.torch_messages import MIXED

import surefit
from surefit.explainer.message_values import read_dtype

KINDS = {
    torch.int64: "integer",
    torch.int32: "integer",
    torch.int16: "integer",
    torch.int8: "integer",
    torch.uint8: "integer",
    torch.bool: "boolean",
    torch.float16: "floating-point",
    torch.bfloat16: "floating-point",
    torch.float64: "floating-point",
}


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_operations_of_torch_are_explained_by_the_dtypes(dtype: torch.dtype) -> None:
    code = "SF640" if dtype.is_floating_point else "SF648"
    for name, call in MIXED.items():
        with pytest.raises((RuntimeError, ValueError)) as caught:
            call(dtype)
        found = surefit.explain(caught.value)
        assert found.code == code, f"{name}: {caught.value}"
        assert f"{dtype} ({KINDS[dtype]})" in " ".join(found.derived), f"{name}: {found}"


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Long", "torch.int64"),
        ("long int", "torch.int64"),
        ("__int64", "torch.int64"),
        ("torch.int64", "torch.int64"),
        ("torch.LongTensor", "torch.int64"),
        ("struct c10::Half", "torch.float16"),
        ("at::BFloat16", "torch.bfloat16"),
        ("unsigned char", "torch.uint8"),
        ("signed char", "torch.int8"),
        ("short int", "torch.int16"),
        ("CUDAHalfType", "torch.float16"),
        ("c10::complex<float>", "torch.complex64"),
        ("ComplexDouble", "torch.complex128"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    found = read_dtype(spelling)
    assert found is not None
    assert found.name == name
