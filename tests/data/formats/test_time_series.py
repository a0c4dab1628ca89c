"""`.ts` files: channels become columns of [steps, channels]; faults named by line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from opening import entry_files, fault_of, rows_of, written
from surefit.data.open_data import open_table
from surefit.data.table import CHUNK_ROWS

HEAD = """# about
@problemName toy
@timeStamps false
@univariate false
@dimensions 2
@classLabel true up down
@data
"""


def test_ragged_series_with_classes(tmp_path: Path) -> None:
    path = written(tmp_path / "a.ts", HEAD + "1,2,3:4,5,6:up\n\n-1e1:NaN:down\n?, 2:1,1:up")
    table = open_table(path)
    assert table.column_type("features") == pa.large_list(pa.list_(pa.float32(), 2))
    rows = list(table.rows())
    assert [row["label"] for row in rows] == ["up", "down", "up"]
    np.testing.assert_array_equal(rows[0]["features"], [[1, 4], [2, 5], [3, 6]])
    np.testing.assert_array_equal(rows[1]["features"], [[-10, np.nan]])
    np.testing.assert_array_equal(rows[2]["features"], [[np.nan, 1], [2, 1]])


def test_series_without_labels_and_with_targets(tmp_path: Path) -> None:
    (row,) = rows_of(written(tmp_path / "a.ts", "@univariate true\n@data\n1,2\n"))
    assert list(row) == ["features"]
    assert row["features"].shape == (2, 1)
    (row,) = rows_of(written(tmp_path / "b.ts", "@targetlabel true\n@data\n1,2:3,4:0.5\n"))
    assert (row["features"].shape, row["label"]) == ((2, 2), 0.5)


def test_more_series_than_one_chunk(tmp_path: Path) -> None:
    count = CHUNK_ROWS + 3
    lines = [",".join(["1.5"] * (1 + place % 7)) + ":0:up\n" for place in range(count)]
    lines = [line.replace(":0:", ":" + line.split(":")[0] + ":") for line in lines]
    rows = rows_of(written(tmp_path / "a.ts", HEAD + "".join(lines)))
    assert [len(row["features"]) for row in rows] == [1 + place % 7 for place in range(count)]


FAULTS = {
    "a channel of another length": (HEAD + "1,2:3,4:up\n1,2:3:up\n", 9, "channel 1 has 1 values"),
    "a channel too many": (HEAD + "1:2:3:up\n", 8, "found 3 channels; expected 2"),
    "a channel too few": (HEAD + "1:up\n", 8, "found 1 channels; expected 2"),
    "an unknown class": (HEAD + "1:2:left\n", 8, "the class is 'left'; @classLabel names down, up"),
    "no class": (HEAD + "1:2\n", 8, "the class is '2'"),
    "a word": (HEAD + "1:two:up\n", 8, "channel 1 has a value that is not a number"),
    "no @data": (HEAD.replace("@data\n", ""), 6, "the file has no line @data"),
    "data before @data": ("1,2:up\n", 1, "expected a line of the header"),
    "time stamps": (
        "@timeStamps true\n@data\n(0,1)\n",
        1,
        "time stamps, (time, value), are not supported",
    ),
    "no number of channels": ("@dimensions many\n@data\n1\n", 1, "expected a number of channels"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named_by_its_line(tmp_path: Path, name: str, cache: Path) -> None:
    text, line, message = FAULTS[name]
    path = written(tmp_path / "a.ts", text)
    found = fault_of(path)
    assert (found.code, found.where) == ("SF102", {"file": str(path), "line": line})
    assert message in found.message
    assert not entry_files(cache)


@pytest.mark.parametrize("text", ["", HEAD])
def test_file_without_series(tmp_path: Path, text: str) -> None:
    assert fault_of(written(tmp_path / "a.ts", text)).code == "SF101"
