"""Arrays with a value per row, computed by blocks: the same as NumPy computes them at once."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
import pytest

from surefit.data import row_arrays
from surefit.data.row_arrays import distinct, is_among, new_array, number_rows, places_of, take
from surefit.data.split import split_by_input, split_rows


@pytest.fixture(params=[(1 << 16, 1 << 16), (7, 3)], ids=["large blocks", "small blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_arrays, "BLOCK_ROWS", request.param[0])
    monkeypatch.setattr(row_arrays, "FEW_ROWS", request.param[1])


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 14, 50])
@pytest.mark.usefixtures("blocks")
def test_they_are_what_numpy_computes(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 9, count).astype(np.uint64)
    names, sizes = np.unique(values, return_counts=True)
    assert [each.tolist() for each in distinct(values)] == [names.tolist(), sizes.tolist()]
    assert number_rows(count).tolist() == list(range(count))
    assert places_of(values > 4).tolist() == np.flatnonzero(values > 4).tolist()
    assert places_of(values > 4, False).tolist() == np.flatnonzero(values <= 4).tolist()
    assert take(values, places_of(values > 4)).tolist() == values[values > 4].tolist()
    among = np.array([2, 3, 11], np.uint64)
    assert is_among(values, among).tolist() == np.isin(values, among).tolist()


def test_a_full_disk_leaves_them_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    made = new_array(row_arrays.FEW_ROWS + 1, np.int64)
    assert made.base is None
    assert not made.any()


@pytest.mark.usefixtures("blocks")
def test_which_rows_are_validation_rows_is_as_it_was() -> None:
    """Digests of the splits before arrays were mapped: runs that resume have the same rows."""
    random = np.random.default_rng(5)
    whole = random.integers(1, 2**63, 3000).astype(np.uint64)
    inputs = random.integers(1, 900, 3000).astype(np.uint64)
    classes = random.integers(0, 4, 3000).astype(np.int16)
    splits = [
        split_rows(whole, 0.1, 3),
        split_rows(whole, 0.1, 3, classes),
        split_by_input(inputs, whole, 0.1, 3),
        split_by_input(inputs, whole, 0.1, 3, classes),
        split_by_input(inputs % np.uint64(3) + np.uint64(1), whole, 0.1, 3),
    ]
    text = " ".join(",".join(map(str, split.evaluation)) for split in splits)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGEST


DIGEST = "ab4b533a00b86864"
