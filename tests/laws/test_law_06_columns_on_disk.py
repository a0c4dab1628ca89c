"""Law 6: columns stay on disk; memory grows by at most 16 bytes a row, for the order."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np

from surefit.batches.field import Field
from surefit.batches.loading import load_batch
from surefit.batches.order import Batches
from surefit.encode.store import Store, new_store

FIELDS = {"input_ids": Field(("time",), "int64", 0)}


def write_store(folder: Path, num_rows: int) -> Store:
    with new_store(folder, FIELDS, {"counts": {}, "dropped": {}}) as writer:
        for row in range(num_rows):
            ids = np.full(20 + row % 50, row % 100)
            writer.append({"input_ids": ids}, source_row=row, num_targets=len(ids), length=len(ids))
    return Store(folder)


def peak_bytes(store: Store) -> int:
    """Most memory held while an epoch is ordered and every batch of it is made."""
    tracemalloc.start()
    batches = Batches(store.lengths, 0, 8)
    for step in range(batches.num_steps(0)):
        load_batch(store, batches.step_rows(0, step), FIELDS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_columns_are_memory_mapped(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 10)
    for column in (store.values("input_ids"), store.offsets("input_ids"), store.lengths):
        assert isinstance(column.base, np.memmap)


def test_memory_per_further_row_is_at_most_sixteen_bytes(tmp_path: Path) -> None:
    few, many = 4_000, 24_000
    small = peak_bytes(write_store(tmp_path / "few", few))
    large = peak_bytes(write_store(tmp_path / "many", many))
    assert (large - small) / (many - few) <= 16
