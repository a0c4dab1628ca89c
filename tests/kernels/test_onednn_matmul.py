"""Products by oneDNN: what torch's own are, for the shapes that go there and those that do not."""

from __future__ import annotations

import pytest
import torch

from surefit.kernels.onednn_matmul import BLOCK, multiply, pieces


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [BLOCK, 2 * BLOCK, BLOCK + 1, 3])
def test_the_product_is_torchs(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 24, dtype=dtype), torch.randn(40, 24, dtype=dtype)
    torch.testing.assert_close(multiply(x, weight.T), x @ weight.T)
    wide = torch.randn(rows, 40, dtype=dtype)
    torch.testing.assert_close(multiply(wide, weight), wide @ weight)


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, 300, 1000])
def test_pieces_cover_all_rows_in_few_sizes(count: int) -> None:
    found = [piece.stop - piece.start for piece in pieces(count, 4 * BLOCK)]
    assert sum(found) == count
    assert sum(size % BLOCK != 0 for size in found) <= 1
    assert all(size <= 4 * BLOCK for size in found)
