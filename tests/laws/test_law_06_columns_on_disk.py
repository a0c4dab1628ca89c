"""Law 6: columns stay on disk; memory grows by at most 16 bytes a row, for the order."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import mostly_slow
from surefit.batches import cut_steps, order
from surefit.batches.field import Field
from surefit.batches.loading import load_batch
from surefit.batches.order import Batches
from surefit.data.row_arrays import take
from surefit.data.row_parts import RowParts, hold_out
from surefit.data.split import find_contradictions, split_by_input
from surefit.inputs.store import Store, new_store

FIELDS = {"input_ids": Field(("time",), "int64", 0)}


def write_store(folder: Path, num_rows: int) -> Store:
    with new_store(folder, FIELDS, {"counts": {}, "dropped": {}}) as writer:
        for row in range(num_rows):
            ids = np.full(20 + row % 50, row % 100)
            writer.append({"input_ids": ids}, source_row=row, num_targets=len(ids), length=len(ids))
    return Store(folder)


def peak_bytes(store: Store, **shape: Any) -> int:
    """Most memory held while an epoch is ordered and every batch of it is made."""
    gc.collect()
    tracemalloc.start()
    batches = Batches(store.lengths, 0, **shape)
    for step in range(batches.steps_per_epoch):
        load_batch(store, batches.step_rows(0, step), FIELDS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_columns_are_memory_mapped(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 10)
    for column in (store.values("input_ids"), store.offsets("input_ids"), store.lengths):
        assert isinstance(column.base, np.memmap)


SHAPES: list[dict[str, Any]] = [
    {"batch_size": 8},
    {"batch_size": 8, "grad_accum": 4},
    {"batch_size": 8, "grad_accum": 4, "padding_free": True},
    {"batch_size": 8, "order": "grouped"},
    {"batch_size": 8, "max_tokens": 400, "padding_free": True},
]


FEW, MANY = 9_000, 29_000


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Store]:
    """Stores of few and of many rows."""
    folder = tmp_path_factory.mktemp("stores")
    return [write_store(folder / str(count), count) for count in (FEW, MANY)]


@pytest.mark.parametrize("shape", mostly_slow(SHAPES, every=3), ids=str)
def test_memory_per_further_row_is_at_most_sixteen_bytes(
    stores: list[Store], shape: dict[str, Any]
) -> None:
    forget_orders()  # of other data
    small, large = (peak_bytes(store, **shape) for store in stores)
    assert (large - small) / (MANY - FEW) <= 16


def split_peak(num_rows: int, kind: str, classes: bool) -> int:
    """Most memory held while rows are split, and searched for repeats and contradictions."""
    random = np.random.default_rng(0)
    whole = random.integers(1, 2**63, num_rows).astype(np.uint64)
    inputs = whole if kind == "all differ" else random.integers(1, num_rows // 2, num_rows)
    inputs = inputs.astype(np.uint64)
    labels = random.integers(0, 3, num_rows).astype(np.int16) if classes else None
    gc.collect()
    tracemalloc.start()
    split = split_by_input(inputs, whole, 0.1, 0, labels)
    parts = RowParts({}, ())
    hold_out(parts, take(inputs, split.train), take(inputs, split.evaluation))
    find_contradictions(inputs, whole)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize(
    ("kind", "classes"),
    mostly_slow([("all differ", True), ("all differ", False), ("repeated", False)], every=3),
)
def test_a_split_takes_sixteen_bytes_a_row(kind: str, classes: bool) -> None:
    few, many = 100_000, 300_000
    small, large = (split_peak(count, kind, classes) for count in (few, many))
    assert (large - small) / (many - few) <= 16


def test_the_rows_of_a_split_are_mapped() -> None:
    hashes = np.arange(1, 200_001, dtype=np.uint64)
    split = split_by_input(hashes, hashes, 0.1, 0)
    assert isinstance(split.train.base, np.memmap)
    assert len(split.train) == 180_000


@pytest.mark.parametrize(
    "shape",
    [{"grad_accum": 4}, {"max_tokens": 4096, "padding_free": True}, {"order": "grouped"}],
    ids=str,
)
@pytest.mark.parametrize("block_rows", mostly_slow([1, 64], every=2))
def test_the_order_takes_no_memory_per_row(shape: dict[str, Any], block_rows: int) -> None:
    """A step in the middle of an epoch is computed alone; with max_tokens, 8 bytes a step stay."""
    peaks, sizes = [], (1 << 16, 1 << 19)
    for num_rows in sizes:
        lengths = np.broadcast_to(np.int32(50), num_rows)
        forget_orders()
        gc.collect()
        tracemalloc.start()
        batches = Batches(lengths, 0, 8, block_rows=block_rows, **shape)
        batches.share(0, batches.steps_per_epoch // 2)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    steps = 16 * sizes[1] * 50 / 4096 * ("max_tokens" in shape)
    assert peaks[1] <= 1.1 * peaks[0] + 50_000 + steps


def forget_orders() -> None:
    """Empty the caches, as in a new process."""
    for module in (cut_steps, order):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
