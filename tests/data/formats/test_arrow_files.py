"""Arrow files and `datasets` folders: mapped where they lie, and their faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest

from builders import fault_of
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


def test_categories_become_text(tmp_path: Path) -> None:
    table = pa.table({"label": pa.array(["a", "b", "a"]).dictionary_encode()})
    opened = open_table(save(tmp_path / "a.arrow", table))
    assert opened.column_type("label") == pa.string()
    assert [row["label"] for row in opened.rows()] == ["a", "b", "a"]


def spoil_offsets(path: Path) -> None:
    """Text offsets of the second batch that point outside of it."""
    content = path.read_bytes()
    second = pa.array([f"row number {i}" for i in range(1000, 2000)]).buffers()[1].to_pybytes()
    place = content.index(second[:64])
    path.write_bytes(content[:place] + b"\xff\xff\xff\x7f" * 16 + content[place + 64 :])


SPOILT: dict[str, tuple[str, Callable[[Path], Any], dict[str, int]]] = {
    "file cut short": ("file", lambda path: path.write_bytes(path.read_bytes()[:-500]), {}),
    "stream cut short": (
        "stream",
        lambda path: path.write_bytes(path.read_bytes()[:-900]),
        {"row": 2000},
    ),
    "empty": ("file", lambda path: path.write_bytes(b""), {}),
    "another format": ("file", lambda path: path.write_text("this is text\n" * 9), {}),
    "offsets that point outside": ("file", spoil_offsets, {"row": 1000}),
}


@pytest.mark.parametrize("name", SPOILT)
def test_damaged_file(tmp_path: Path, name: str) -> None:
    kind, spoil, place = SPOILT[name]
    path = save(tmp_path / "a.arrow", kind=kind)
    spoil(path)
    found = fault_of(path)
    assert (found.code, found.where) == ("SF102", {"file": str(path), **place})


def test_union_column_is_named(tmp_path: Path) -> None:
    union = pa.UnionArray.from_dense(
        pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["x"])]
    )
    found = fault_of(save(tmp_path / "a.arrow", pa.table({"x": union})))
    assert (found.code, found.where["column"]) == ("SF213", "x")


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
    assert (found.code, found.severity) == ("SF121", "info")
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
