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
    ("message", "code", "expected"),
    [
        (
            "Found dtype Long but expected Float",
            "SF648",
            "the labels are torch.int64 (integer) and the predictions are torch.float32 (floating",
        ),
        ("Found dtype Double but expected Float", "SF640", "labels.to(logits.dtype)"),
        ("Found dtype Bool but expected Half", "SF648", "labels are torch.bool (boolean)"),
        (
            "expected scalar type Float but found Long",
            "SF648",
            "found torch.int64 (integer) and expected torch.float32 (floating-point)",
        ),
        ("expected scalar type Float but found Half", "SF640", "torch.float16 is half precision"),
        ("expected scalar type Half but found Float", "SF640", "torch.float16 is half precision"),
        ("expected scalar type BFloat16 but found Float", "SF640", "torch.bfloat16 is half"),
        ("expected scalar type Half but found BFloat16", "SF640", "Both are half precision"),
        ("expected scalar type Float but found Double", "SF640", "default of NumPy"),
        ("expected scalar type Long but found Int", "SF623", "labels are torch.int32 (integer)"),
        ("expected scalar type Long but found Float", "SF623", "torch.float32 (floating-point)"),
        (
            'File "torch/a.py", line 1\n    torch.bmm(mask, values)\n'
            "RuntimeError: expected scalar type Long but found Float",
            "SF648",
            "found torch.float32 (floating-point) and expected torch.int64 (integer)",
        ),
        ("expected scalar type Int but found Float", "SF648", "torch.int32 (integer)"),
        (
            "mat1 and mat2 must have the same dtype, but got Long and BFloat16",
            "SF648",
            "torch.int64 (integer) and torch.bfloat16 (floating-point)",
        ),
        ("mat1 and mat2 must have the same dtype", "SF640", ""),
        (
            "Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor) should be "
            "the same",
            "SF640",
            "torch.float16 (floating-point) and torch.float32 (floating-point)",
        ),
        (
            "Input type (torch.cuda.LongTensor) and bias type (torch.cuda.FloatTensor) should be "
            "the same",
            "SF648",
            "torch.int64 (integer)",
        ),
        (
            "Input type (torch.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the "
            "same",
            "SF641",
            "The batch is on the CPU, the layer is on the GPU. The dtypes differ as well",
        ),
        (
            "Input type (MPSFloatType) and weight type (torch.FloatTensor) should be the same",
            "SF641",
            "The batch is on the GPU, the layer is on the CPU.",
        ),
        (
            "result type Float can't be cast to the desired output type Long",
            "SF648",
            "torch.int64 (integer)",
        ),
        (
            "loss = F.binary_cross_entropy_with_logits(x, y)\n"
            "RuntimeError: result type Float can't be cast to the desired output type Long",
            "SF623",
            "Use labels.float()",
        ),
        ("\"nll_loss_out_frame\" not implemented for 'Half'", "SF646", ""),
        ("\"nll_loss_out_frame\" not implemented for 'Long'", "SF648", "torch.int64 (integer)"),
        (
            "\"nll_loss_forward_reduce_cuda_kernel_2d_index\" not implemented for 'Float'",
            "SF623",
            "labels are torch.float32 (floating-point), but class indices must be torch.int64",
        ),
        (
            "expected target dtype to be Long or Byte, but got Int",
            "SF623",
            "torch.int32 (integer), but class indices must be torch.int64",
        ),
        (
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: "
            "Long, Int; but got CPUBFloat16Type instead",
            "SF624",
            "torch.bfloat16 (floating-point). The usual source is a cast of the whole batch",
        ),
        (
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: "
            "Long, Int; but got torch.cuda.FloatTensor instead",
            "SF624",
            "The usual source is an empty row",
        ),
        (
            "masked_fill only supports boolean masks, but got dtype Byte",
            "SF649",
            "The mask is torch.uint8 (integer).",
        ),
        (
            "Expected attn_mask dtype to be bool or to match query dtype, but got attn_mask.dtype: "
            "long int and  query.dtype: c10::BFloat16 instead.",
            "SF649",
            "The mask is torch.int64 (integer), the query is torch.bfloat16.",
        ),
        (
            "value cannot be converted to type at::Half without overflow: -1e+09",
            "SF668",
            "torch.float16 (floating-point)",
        ),
        ("value cannot be converted to type int64_t without overflow", "SF668", "torch.int64"),
    ],
)
def test_messages_are_explained_by_the_dtypes(message: str, code: str, expected: str) -> None:
    found = surefit.explain(message)
    assert found.code == code
    assert expected in " ".join(found.derived)


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
