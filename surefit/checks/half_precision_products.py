"""Matrix products in half precision, as training computes them, in a process of their own.

    python half_precision_products.py bf16

A CPU may announce instructions that it cannot execute; the process is then killed by SIGILL.
An operation that torch does not implement, or a wrong result, ends it with a message and exit
code 1. The file imports torch alone, so that the process starts quickly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

import torch
from torch.nn import functional

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
TOLERANCE = 0.05
"""Relative error of a result; rounding to bf16 alone gives about 0.003."""
Product = Callable[..., torch.Tensor]
HEADS = (2, 4, 80, 64)
PRODUCTS: dict[str, tuple[Product, list[tuple[int, ...]]]] = {
    "linear of a row": (functional.linear, [(1, 256), (512, 256), (512,)]),
    "linear": (functional.linear, [(256, 256), (512, 256), (512,)]),
    "bmm": (torch.bmm, [(8, 64, 96), (8, 96, 64)]),
    "attention": (functional.scaled_dot_product_attention, [HEADS] * 3),
}
"""Each kind of product with the shapes of its operands, large enough for the fast kernels."""


def forward_and_backward(
    product: Product, operands: list[torch.Tensor], dtype: torch.dtype | None
) -> list[torch.Tensor]:
    """The product and the gradients of its operands, under autocast as training calls it."""
    leaves = [operand.clone().requires_grad_() for operand in operands]
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        result = product(*leaves)
    torch.manual_seed(1)
    result.backward(torch.randn(result.shape).to(result.dtype))  # type: ignore[no-untyped-call]
    found = [result, *(leaf.grad for leaf in leaves)]
    return [each.detach().float() for each in found if each is not None]


def find_fault(dtype: torch.dtype) -> str | None:
    """The first product whose result is far from that in float32."""
    for name, (product, shapes) in PRODUCTS.items():
        torch.manual_seed(0)
        operands = [torch.randn(shape).to(dtype).float() for shape in shapes]
        got, expected = (forward_and_backward(product, operands, each) for each in (dtype, None))
        for one, other in zip(got, expected, strict=True):
            error = float((one - other).norm() / other.norm())
            if not error < TOLERANCE:
                return f"{name} is wrong by {error:.0%}"
    return None


def main(precision: str) -> int:
    """Compute every product; the exit code says whether all of them are right."""
    with suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core file if the process is killed
    try:
        fault = find_fault(TYPES[precision])
    except RuntimeError as error:
        fault = str(error).strip().splitlines()[0]
    print(fault or "")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
