"""The Store: what is written is what is read, for every rank and dtype, whole or not at all."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from surefit.batches.field import Field
from surefit.encode.store import Store, new_store

DTYPES = ("int64", "int32", "uint8", "float32", "float64", "float16", "bool")


@st.composite
def stores(draw: st.DrawFn) -> tuple[dict[str, Field], list[dict[str, Any]]]:
    """Fields of any rank and dtype, and ragged rows of them, some without a single value."""
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True))
    fields = {
        name: Field(
            tuple(f"{name}{axis}" for axis in range(draw(st.integers(0, 3)))),
            draw(st.sampled_from(DTYPES)),
        )
        for name in names
    }
    rows = []
    for _ in range(draw(st.integers(0, 5))):
        shapes = {n: tuple(draw(st.integers(0, 3)) for _ in f.axes) for n, f in fields.items()}
        rows.append(
            {n: draw(arrays.arrays(f.numpy_dtype, shapes[n])) for n, f in fields.items()},
        )
    return fields, rows


def write(folder: Path, fields: dict[str, Field], rows: list[dict[str, Any]]) -> Store:
    with new_store(folder, fields, {"kept": [1, "x"]}) as writer:
        for place, row in enumerate(rows):
            writer.append(row, source_row=10 * place, num_targets=place + 1, length=place + 2)
    return Store(folder)


@settings(deadline=None)
@given(stores())
def test_rows_come_back_as_they_were_written(
    content: tuple[dict[str, Field], list[dict[str, Any]]],
) -> None:
    fields, rows = content
    with tempfile.TemporaryDirectory() as folder:
        store = write(Path(folder) / "store", fields, rows)
        assert len(store) == len(rows)
        assert store.fields == fields
        for got, row in zip(store.rows(range(len(rows))), rows, strict=True):
            assert list(got) == list(fields)
            for name, value in row.items():
                assert got[name].dtype == fields[name].numpy_dtype
                assert got[name].shape == value.shape
                assert got[name].tobytes() == value.tobytes()


def test_notes_and_row_figures_are_kept(tmp_path: Path) -> None:
    fields = {"x": Field(("time",), "int64")}
    store = write(tmp_path / "key", fields, [{"x": np.arange(2)}, {"x": np.arange(3)}])
    assert store.key == "key"
    assert store.notes == {"kept": [1, "x"]}
    assert store.source_row.tolist() == [0, 10]
    assert store.num_targets.tolist() == [1, 2]
    assert store.lengths.tolist() == [2, 3]
    assert store.values("x").tolist() == [0, 1, 0, 1, 2]
    assert store.offsets("x").tolist() == [0, 2, 5]


def test_values_are_mapped_from_disk_not_held(tmp_path: Path) -> None:
    fields = {"x": Field(("time",), "int64")}
    store = write(tmp_path / "store", fields, [{"x": np.arange(5)}])
    value = store.row(0)["x"]
    assert isinstance(value.base.base, np.memmap)
    assert not value.flags.writeable


def test_files_are_exactly_those_the_ranks_need(tmp_path: Path) -> None:
    fields = {"s": Field(), "v": Field(("time",)), "m": Field(("time", "width"))}
    row = {"s": np.float32(1), "v": np.zeros(2, np.float32), "m": np.zeros((2, 3), np.float32)}
    write(tmp_path / "store", fields, [row])
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == [
        "columns.json",
        "copy",
        "digests.json",
        "length",
        "m.offsets",
        "m.shapes",
        "m.values",
        "num_targets",
        "s.values",
        "source_row",
        "v.offsets",
        "v.values",
    ]
    assert json.loads((tmp_path / "store" / "columns.json").read_text())["num_rows"] == 1


def test_failure_half_way_leaves_nothing(tmp_path: Path) -> None:
    fields = {"x": Field(("time",), "int64")}
    good, bad = {"x": np.arange(2)}, {"y": np.arange(2)}
    with pytest.raises(KeyError):
        write(tmp_path / "store", fields, [good, bad])
    assert list(tmp_path.iterdir()) == []
