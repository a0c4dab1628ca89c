"""Arrow and Parquet files and `datasets` folders: rows, types, faults, and bounded memory."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opening import fault_of
from surefit.data.open_data import open_table

datasets.disable_progress_bars()

TABLE = pa.table(
    {
        "text": [f"row number {i}" for i in range(2500)],
        "x": pa.FixedSizeListArray.from_arrays(np.arange(5000, dtype=np.float32), 2),
    }
)


def save(path: Path, table: pa.Table = TABLE, kind: str = "file", **options: Any) -> Path:
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with new(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=1000)
    return path


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_rows_are_mapped_where_they_lie(tmp_path: Path, cache: Path, kind: str) -> None:
    path = save(tmp_path / "a.arrow", kind=kind)
    before = pa.total_allocated_bytes()
    table = open_table(path)
    assert pa.total_allocated_bytes() - before < 10_000
    assert not list(cache.rglob("table.arrow"))
    row = table.row(2499)
    assert row["text"] == "row number 2499"
    np.testing.assert_array_equal(row["x"], [4998, 4999])


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_compressed_rows_are_unpacked_into_the_cache(
    tmp_path: Path, cache: Path, kind: str
) -> None:
    path = save(tmp_path / "a.arrow", kind=kind, compression="lz4")
    before = pa.total_allocated_bytes()
    table = open_table(path)
    assert pa.total_allocated_bytes() - before < 10_000
    assert list(cache.rglob("table.arrow"))
    assert table.arrow.equals(TABLE)


ROWS = {"text": [f"t{i}" for i in range(50)], "label": list(range(50))}


def test_dataset_folder(tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict(ROWS)
    data.shuffle(seed=3).save_to_disk(tmp_path / "d", num_shards=12)
    expected = data.shuffle(seed=3)["text"]
    table = open_table(tmp_path / "d")
    assert [row["text"] for row in table.rows()] == list(expected)
    assert Path(str(table.where(49)["file"])).name == "data-00011-of-00012.arrow"


def test_dataset_dict_folder_uses_train_and_names_the_others(tmp_path: Path) -> None:
    parts = datasets.Dataset.from_dict(ROWS).train_test_split(10, shuffle=False)
    parts.save_to_disk(tmp_path / "d")
    table = open_table(tmp_path / "d")
    assert table.num_rows == 40
    (found,) = table.findings
    assert (found.code, found.severity) == ("", "info")
    assert "not used: test" in found.message
    assert open_table(tmp_path / "d" / "test").num_rows == 10


def test_faults_of_dataset_folders(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    datasets.Dataset.from_dict(ROWS).save_to_disk(folder, num_shards=2)
    missing = folder / "data-00001-of-00002.arrow"
    missing.unlink()
    found = fault_of(folder)
    assert (found.code, found.where) == ("SF102", {"file": str(missing)})
    (folder / "state.json").write_text("{")
    assert fault_of(folder).where == {"file": str(folder / "state.json")}
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../x.arrow"}]}))
    assert fault_of(folder).code == "SF102"
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["test"]}))
    assert "expected one called train" in fault_of(folder).message


PARQUET_ROWS = [{"text": f"one {i}", "label": i % 2, "x": [i, i + 1.5]} for i in range(3000)]


def save_parquet(path: Path, rows: list[dict[str, Any]] = PARQUET_ROWS, **options: Any) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    table = open_table(save_parquet(tmp_path / "a.parquet", row_group_size=700))
    assert table.num_rows == 3000
    rows = list(table.rows([2999, 0, 1500, 701]))
    assert [row["text"] for row in rows] == ["one 2999", "one 0", "one 1500", "one 701"]
    np.testing.assert_array_equal(rows[2]["x"], [1500, 1501.5])
    assert table.where(701) == {"file": str(tmp_path / "a.parquet"), "row": 701}


def test_other_types_become_plain_ones(tmp_path: Path) -> None:
    moment = datetime.datetime(2020, 1, 2, 3, 4, 5, 678)
    columns = {
        "category": pa.array(["a", None, "a"]).dictionary_encode(),
        "price": pa.array([Decimal("1.50"), None, Decimal("2.25")]),
        "time": pa.array([moment] * 3, pa.timestamp("ns")),
        "half": pa.array(np.arange(3, dtype=np.float16)),
        "nested": pa.array([{"x": [1]}, None, {"x": []}]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    rows = list(open_table(tmp_path / "a.parquet").rows())
    assert [row["category"] for row in rows] == ["a", None, "a"]
    assert [row["price"] for row in rows] == [1.5, None, 2.25]
    assert (rows[0]["time"], rows[2]["half"]) == (moment, 2.0)
    assert [row["nested"] for row in rows] == [{"x": [1]}, None, {"x": []}]


def test_shards_are_joined_and_one_that_differs_is_named(tmp_path: Path) -> None:
    save_parquet(tmp_path / "part-2.parquet", [{"x": 3}])
    save_parquet(tmp_path / "part-1.parquet", [{"x": 1}, {"x": 2}])
    (tmp_path / "_SUCCESS").touch()
    table = open_table(tmp_path)
    assert [row["x"] for row in table.rows()] == [1, 2, 3]
    assert table.where(2) == {"file": str(tmp_path / "part-2.parquet"), "row": 0}
    odd = save_parquet(tmp_path / "part-3.parquet", [{"x": "text"}])
    found = fault_of(tmp_path)
    assert (found.code, found.where["file"]) == ("SF106", str(odd))


MEASURE = """
import sys, pyarrow as pa
from surefit.data.open_data import open_table
table = open_table(sys.argv[1])
for row in table.rows(range(0, table.num_rows, 7)):
    assert row["text"]
print(pa.default_memory_pool().max_memory())
"""


def peak_bytes(path: Path, cache: Path) -> int:
    command = [sys.executable, "-c", MEASURE, str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert any(cache.rglob("table.arrow"))
    return int(shown)


def test_memory_does_not_grow_with_rows(tmp_path: Path, cache: Path) -> None:
    text = pa.array(["word " * 100] * 2000)
    peaks, sizes = [], []
    for name, groups in (("few", 4), ("many", 40)):
        path = tmp_path / f"{name}.parquet"
        table = pa.table({"text": text, "x": pa.array(np.random.rand(2000))})
        with pq.ParquetWriter(path, table.schema) as writer:
            for _ in range(groups):
                writer.write_table(table)
        peaks.append(peak_bytes(path, cache))
        sizes.append(groups * text.nbytes)
    assert sizes[1] - sizes[0] > 30e6
    assert peaks[1] < peaks[0] + 2e6
    assert peaks[1] < 16e6
