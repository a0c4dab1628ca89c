"""Data that stays on disk, in anyone's own loop: the same batches however they are loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import surefit
from surefit.data.cell_files import kind_named
from surefit.data.table import Source, Table, take_rows
from surefit.data.text_sketches import common_pairs
from surefit.errors import FindingError, UsageError
from surefit.inputs.file_names import check_file_names
from surefit.memory.process_memory import anonymous_bytes


def _shards(folder: Path, count: int = 3, rows: int = 7) -> np.ndarray[Any, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(0).standard_normal((count * rows, 4, 3)).astype(np.float32)
    for place in range(count):
        np.save(folder / f"part-{place}.npy", values[place * rows : (place + 1) * rows])
    return values


def _ragged(path: Path, num_rows: int = 20) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(1)
    rows = [
        random.random((int(random.integers(1, 6)), 2)).astype("float32") for _ in range(num_rows)
    ]
    np.savez(path, *rows, y=np.arange(num_rows) % 3)
    return rows


def test_open_data_gives_the_rows_of_all_shards_as_tensors(tmp_path: Path) -> None:
    values = _shards(tmp_path / "data")
    data = surefit.open_data(tmp_path / "data", max_memory_gb=12)
    assert isinstance(data, torch.utils.data.Dataset)
    assert len(data) == 21
    assert torch.equal(data[8]["inputs_embeds"], torch.from_numpy(values[8]))
    assert torch.equal(data[-1]["inputs_embeds"], torch.from_numpy(values[-1]))
    with pytest.raises(IndexError, match="row 21 of 21"):
        data[21]


def test_text_columns_keep_their_names_and_text(tmp_path: Path) -> None:
    rows = [{"text": f"row {n}", "label": n % 2, "weight": n / 2} for n in range(10)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    item = surefit.open_data(file)[3]
    assert item["text"] == "row 3"
    assert item["weight"] == torch.tensor(1.5)
    train, _ = surefit.loaders(file, batch_size=3, max_memory_gb=12)
    batch = next(iter(train))
    assert batch["weight"].shape == (3,)
    assert batch["text"] == [f"row {int(w * 2)}" for w in batch["weight"]]


def test_loaders_give_every_row_once_and_pad_by_length(tmp_path: Path) -> None:
    rows = _ragged(tmp_path / "rows.npz")
    train, evaluation = surefit.loaders(tmp_path / "rows.npz", 4, max_memory_gb=12, eval_share=0.25)
    seen = []
    for batch in (*train, *evaluation):
        assert batch["attention_mask"].shape == batch["inputs_embeds"].shape[:2]
        for steps, mask, label in zip(
            batch["inputs_embeds"], batch["attention_mask"], batch["labels"], strict=True
        ):
            real = steps[mask == 1].numpy()
            (number,) = [n for n, row in enumerate(rows) if np.array_equal(row, real)]
            assert label == number % 3
            assert (steps[mask == 0] == 0).all()
            seen.append(number)
    assert sorted(seen) == list(range(20))
    assert len(evaluation.dataset) == 20
    assert sum(len(batch["labels"]) for batch in evaluation) == 5


def _batches(loader: Any) -> list[dict[str, torch.Tensor]]:
    return list(loader)


def _equal(one: list[dict[str, torch.Tensor]], other: list[dict[str, torch.Tensor]]) -> bool:
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_change_neither_order_nor_batches(tmp_path: Path, workers: int) -> None:
    _ragged(tmp_path / "rows.npz", 60)
    alone, _ = surefit.loaders(tmp_path / "rows.npz", 4, max_memory_gb=12)
    helped, _ = surefit.loaders(tmp_path / "rows.npz", 4, max_memory_gb=12, workers=workers)
    for _ in range(2):
        assert _equal(_batches(alone), _batches(helped))


def test_each_epoch_has_its_own_order_and_a_seek_goes_there(tmp_path: Path) -> None:
    _ragged(tmp_path / "rows.npz", 60)
    train, evaluation = surefit.loaders(tmp_path / "rows.npz", 4, max_memory_gb=12)
    first, second = _batches(train), _batches(train)
    assert not _equal(first, second)
    again, _ = surefit.loaders(tmp_path / "rows.npz", 4, max_memory_gb=12)
    again.batch_sampler.seek(epoch=1, batch=5)
    assert _equal(_batches(again), second[5:])
    assert _equal(_batches(evaluation), _batches(evaluation))


def test_a_batch_that_cannot_fit_is_refused_with_the_size_that_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surefit.custom_loop.anonymous_bytes", lambda: 10**9)
    np.save(
        tmp_path / "big.npy",
        np.lib.format.open_memmap(tmp_path / "all.npy", "w+", np.float32, (64, 999, 400)),
    )
    limit = 1.05
    with pytest.raises(FindingError) as caught:
        surefit.loaders(tmp_path / "big.npy", batch_size=64, max_memory_gb=limit)
    (found,) = caught.value.findings
    assert found.code == "SF450"
    fitting = int(found.fix.split("=")[1].split()[0])
    assert 1 <= fitting < 64
    train, _ = surefit.loaders(tmp_path / "big.npy", fitting, max_memory_gb=limit)
    assert next(iter(train))["inputs_embeds"].shape == (fitting, 999, 400)


def test_rows_that_exceed_the_memory_limit_are_shuffled_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surefit.custom_loop.anonymous_bytes", lambda: 0)
    values = _shards(tmp_path / "data", rows=400)
    for limit, block_rows in ((values.nbytes / 2e9, 256), (12, 1)):
        train, _ = surefit.loaders(tmp_path / "data", 2, max_memory_gb=limit, eval_share=0)
        order: Any = train.batch_sampler
        assert order.batches.block_rows == block_rows
        assert sorted(row for batch in order for row in batch) == list(range(1200))


def test_numbers_out_of_range_are_refused(tmp_path: Path) -> None:
    _shards(tmp_path / "data")
    with pytest.raises(UsageError, match="batch_size 0"):
        surefit.loaders(tmp_path / "data", 0, max_memory_gb=1)
    with pytest.raises(UsageError, match="max_memory_gb is 0"):
        surefit.open_data(tmp_path / "data", max_memory_gb=0)


def test_reading_rows_holds_no_more_than_the_rows(tmp_path: Path) -> None:
    big = np.lib.format.open_memmap(tmp_path / "big.npy", "w+", np.float32, (4000, 50, 200))
    big[:] = 1.0
    big.flush()
    data = surefit.open_data(tmp_path / "big.npy")
    data.read(range(100))
    before = anonymous_bytes()
    for start in range(0, 4000, 100):
        data.read(range(start, start + 100))
    assert anonymous_bytes() - before < 40e6  # the file is 160 MB


def _save_rows(folder: Path, form: str, rows: list[np.ndarray[Any, Any]]) -> Path:
    folder.mkdir()
    path = folder / ("rows.pt" if form == "list" else "rows.npz")
    if form == "numbered":
        np.savez(path, *rows)
    elif form == "padded":
        padded = np.zeros((len(rows), 300, 500), np.float32)
        for place, row in enumerate(rows):
            padded[place, : len(row)] = row
        np.savez(path, features=padded, lengths=np.array([len(row) for row in rows]))
    else:
        torch.save([torch.from_numpy(row) for row in rows], path)
    return path


@pytest.mark.parametrize("form", ["numbered", "padded", "list"])
def test_ragged_rows_are_not_held_when_they_are_joined(tmp_path: Path, form: str) -> None:
    rows = [np.full((steps, 500), steps, np.float32) for steps in range(100, 300)]  # 80 MB
    path = _save_rows(tmp_path / "all", form, rows)
    few = surefit.open_data(_save_rows(tmp_path / "few", form, rows[:3]))
    assert len(few) == 3  # and what is imported for it is there
    before = anonymous_bytes()
    data = surefit.open_data(path)
    assert anonymous_bytes() - before < 30e6
    assert [len(data[place]["inputs_embeds"]) for place in (0, 7, 199)] == [100, 107, 299]
    assert float(data[7]["inputs_embeds"].mean()) == 107


LONG = 100_000
ROWS = 640
WHOLE = LONG * ROWS


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """Counts what Arrow allocates in the test."""
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    yield counted
    pa.set_memory_pool(before)


def long_texts(column: str, text: str) -> Table:
    first = pa.array(["a.png"], pa.large_string())  # the name of a file
    chunk = pa.array([text * (LONG // len(text))] * 64, pa.large_string())
    arrow = pa.table({column: pa.chunked_array([first, *[chunk] * (ROWS // 64)])})
    return Table(arrow, (Source("rows.jsonl", 0),), "key")


READERS: dict[str, Callable[[Table], Any]] = {
    "check_file_names": lambda table: list(check_file_names(table, {"text": "text"})),
    "kind_named": lambda table: kind_named(table, "text", lambda kind: True),
    "rows": lambda table: sum(1 for _ in table.rows(range(0, ROWS, 2))),
    "common_pairs": lambda table: common_pairs(table, ["text"], np.arange(ROWS)),
}


@pytest.mark.parametrize("name", READERS)
def test_a_column_of_long_texts_is_not_read_whole(name: str, pool: pa.MemoryPool) -> None:
    table = long_texts("text", "many words ")
    before = pool.bytes_allocated()
    READERS[name](table)
    assert pool.max_memory() - before < WHOLE / 2


def test_neighbouring_rows_are_not_copied(pool: pa.MemoryPool) -> None:
    rows = pa.table({"a": np.zeros(1_000_000)})
    before = pool.bytes_allocated()
    taken = take_rows(rows.to_batches(), np.array([1_000_000]), np.arange(10, 900_000))
    assert taken.num_rows == 899_990
    assert pool.max_memory() - before < 100_000
