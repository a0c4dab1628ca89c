"""Products of matrices by oneDNN, which on AMD's CPUs is faster than the MKL that torch takes.

oneDNN keeps what it prepared for each shape, up to gigabytes where shapes vary: only numbers of
rows that are multiples of `BLOCK` go there, for callers who have few of them. Its operation has
no gradient: for use inside autograd functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

BLOCK = 64


def pieces(count: int, largest: int) -> Iterator[slice]:
    """Cut `count` rows into pieces of `largest`, then one of whole blocks, then the rest.

    >>> [(piece.start, piece.stop) for piece in pieces(900, 256)]
    [(0, 256), (256, 512), (512, 768), (768, 896), (896, 900)]
    """
    start = 0
    while start < count:
        left = min(count - start, largest)
        size = left // BLOCK * BLOCK or left
        yield slice(start, start + size)
        start += size


def multiply(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """`x @ matrix`, both of two axes."""
    import torch

    known = x.device.type == "cpu" and x.dtype == matrix.dtype == torch.float32
    operation = _onednn() if known and len(x) % BLOCK == 0 else None
    if operation is None:
        return x @ matrix
    made: torch.Tensor = operation(x, matrix.T, None, "none", [], "")
    return made


@lru_cache(maxsize=1)
def _onednn() -> Any:
    """oneDNN's product with a transposed matrix, if this build of torch has it."""
    import torch

    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)
