"""Matrix products in half precision, as training computes them, in a process of their own.

    python half_precision_products.py bf16

A CPU may announce instructions that it cannot execute; the process is then killed by SIGILL.
An operation that torch does not implement, or a wrong result, ends it with a message and exit
code 1. The file imports torch alone, so that the process starts quickly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import torch
from torch.nn import functional

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
TOLERANCE = 0.05
"""Relative error of a result; rounding to bf16 alone gives about 0.003."""
Product = Callable[..., torch.Tensor]


def products() -> Iterator[tuple[str, Product, list[tuple[int, ...]]]]:
    """Each kind of product with the shapes of its operands, large enough for the fast kernels."""
    for rows in (1, 7, 256):
        shapes: list[tuple[int, ...]] = [(rows, 256), (512, 256), (512,)]
        yield f"linear of {rows} rows", functional.linear, shapes
    yield "addmm", torch.addmm, [(96, 128), (96, 192), (192, 128)]
    yield "bmm", torch.bmm, [(8, 64, 96), (8, 96, 64)]
    heads = (2, 4, 80, 64)
    yield "attention", functional.scaled_dot_product_attention, [heads] * 3
    yield "attention with a mask", _masked_attention, [heads] * 3


def _masked_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    size = query.shape[-2]
    mask = torch.ones(size, size, dtype=torch.bool).tril()
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def forward_and_backward(product: Product, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """The product and the gradients of its operands, in float32."""
    leaves = [operand.clone().requires_grad_() for operand in operands]
    result = product(*leaves)
    torch.manual_seed(1)
    result.backward(torch.randn(result.shape).to(result.dtype))  # type: ignore[no-untyped-call]
    found = [result, *(leaf.grad for leaf in leaves)]
    return [each.detach().float() for each in found if each is not None]


def mixed(product: Product, dtype: torch.dtype) -> Product:
    """The product of float32 operands under autocast, which is how training calls it."""

    def call(*operands: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return product(*operands)

    return call


def find_fault(dtype: torch.dtype) -> str | None:
    """The first product whose result is far from that in float32."""
    for name, product, shapes in products():
        torch.manual_seed(0)
        rounded = [torch.randn(shape).to(dtype) for shape in shapes]
        wide = [operand.float() for operand in rounded]
        expected = forward_and_backward(product, wide)
        for call, operands in ((product, rounded), (mixed(product, dtype), wide)):
            got = forward_and_backward(call, operands)
            for one, other in zip(got, expected, strict=True):
                error = float((one - other).norm() / other.norm())
                if not error < TOLERANCE:
                    return f"{name} is wrong by {error:.0%}"
    return None


def main(precision: str) -> int:
    """Compute every product; the exit code says whether all of them are right."""
    try:
        fault = find_fault(TYPES[precision])
    except RuntimeError as error:
        fault = str(error).strip().splitlines()[0]
    print(fault or "")
    return 1 if fault else 0


def leave_no_core_file() -> None:
    """Where the system writes one for a process that it kills."""
    with suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    leave_no_core_file()
    sys.exit(main(sys.argv[1]))
