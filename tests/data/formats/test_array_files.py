"""Array files: one row per file, shards, class folders, any dtype, ragged layouts; faults named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opening import FLAT, NAMES, RAGGED, fault_of, rows_of
from surefit.data.open_data import open_table


def save(folder: Path, shapes: list[tuple[int, ...]], name: str = "r{}") -> list[Any]:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = [np.random.default_rng(n).normal(size=shape) for n, shape in enumerate(shapes)]
    for place, array in enumerate(arrays):
        np.save(folder / f"{name.format(place)}.npy", array)
    return arrays


ROWS = {
    "vectors": [(7,)] * 4,
    "waves of different length": [(7,), (9,), (5,)],
    "sequences of different length": [(4, 3), (6, 3), (5, 3), (9, 3)],
    "more files than steps": [(2, 3)] * 5,
    "channels first": [(3, 4), (3, 6), (3, 5), (3, 9), (3, 7)],
}


@pytest.mark.parametrize("shapes", ROWS.values(), ids=ROWS)
def test_one_row_per_file(tmp_path: Path, shapes: list[tuple[int, ...]]) -> None:
    arrays = save(tmp_path, shapes)
    rows = [row["features"] for row in open_table(tmp_path).rows()]
    assert len(rows) == len(arrays)
    for row, array in zip(rows, arrays, strict=True):
        np.testing.assert_array_equal(np.stack(list(row)), array)


SHARDS = {
    "rows of sequences": [(4, 5, 3), (4, 5, 3), (2, 5, 3)],
    "vectors, the last shard shorter": [(40, 3), (40, 3), (40, 3), (12, 3)],
    "a few large files": [(30, 3), (25, 3)],
}


@pytest.mark.parametrize("shapes", SHARDS.values(), ids=SHARDS)
def test_shards_stay_shards(tmp_path: Path, shapes: list[tuple[int, ...]]) -> None:
    save(tmp_path, shapes)
    table = open_table(tmp_path)
    assert table.num_rows == sum(shape[0] for shape in shapes)
    assert not table.findings


def test_many_equal_matrices_are_doubtful_unless_their_names_say_shards(tmp_path: Path) -> None:
    save(tmp_path / "a", [(20, 3)] * 9)
    save(tmp_path / "b", [(20, 3)] * 9, "part-{}")
    assert [found.code for found in open_table(tmp_path / "a").findings] == ["SF173"]
    assert not open_table(tmp_path / "b").findings


def test_class_folders_of_arrays(tmp_path: Path) -> None:
    cats = save(tmp_path / "cat", [(4, 3), (6, 3)])
    dogs = save(tmp_path / "dog", [(5, 3)])
    rows = list(open_table(tmp_path).rows())
    assert [row["label"] for row in rows] == ["cat", "cat", "dog"]
    for row, array in zip(rows, [*cats, *dogs], strict=True):
        np.testing.assert_array_equal(row["features"], array)


def test_one_large_array_per_class(tmp_path: Path) -> None:
    save(tmp_path / "cat", [(30, 3)])
    save(tmp_path / "dog", [(20, 3)])
    table = open_table(tmp_path)
    assert [row["label"] for row in table.rows()] == ["cat"] * 30 + ["dog"] * 20


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "f2", "f8", "i1", "<i8", ">i4", "u2", "bool"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_of_any_dtype_and_byte_order(tmp_path: Path, dtype: str, order: Any) -> None:
    array = np.arange(24).reshape(4, 3, 2).astype(dtype, order=order)
    np.save(tmp_path / "a.npy", array)
    rows = rows_of(tmp_path / "a.npy")
    assert [list(row) for row in rows] == [["features"]] * 4
    np.testing.assert_array_equal(np.stack([row["features"] for row in rows]), array)
    assert rows[0]["features"].dtype == array.dtype.newbyteorder("=")


def test_npy_text(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", text=np.array(["één", "two"]), raw=np.array([b"a", b"bc"]))
    assert rows_of(tmp_path / "a.npz") == [
        {"text": "één", "raw": "a"},
        {"text": "two", "raw": "bc"},
    ]
    np.save(tmp_path / "a.npy", np.array([b"\xff"]))
    assert fault_of(tmp_path / "a.npy").code == "SF105"


PADDED = np.stack([np.pad(row, ((0, 7 - len(row)), (0, 0)), constant_values=9) for row in RAGGED])

LAYOUTS: dict[str, dict[str, Any]] = {
    "flat values with offsets": {"features": FLAT, "offsets": np.array([0, 3, 3, 4, 9])},
    "flat values with ends": {"features": FLAT, "offsets": np.array([3, 3, 4, 9])},
    "flat values with lengths": {"features": FLAT, "lengths": np.array([3, 0, 1, 5])},
    "flat values with named lengths": {"features": FLAT, "X_lens": np.array([3, 0, 1, 5])},
    "padded values with lengths": {"features": PADDED, "lengths": np.array([3, 0, 1, 5])},
    "padded values with float lengths": {"features": PADDED, "length": np.array([3.0, 0, 1, 5])},
    "one array per row": {f"arr_{place}": row for place, row in enumerate(RAGGED)},
    "one array per row, named": {f"features-{place}": row for place, row in enumerate(RAGGED)},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_ragged_layout(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "a.npz", **LAYOUTS[name], y=NAMES)
    table = open_table(tmp_path / "a.npz")
    assert sorted(table.columns) == ["features", "y"]
    for row, features, label in zip(table.rows(), RAGGED, NAMES, strict=True):
        np.testing.assert_array_equal(row["features"], features)
        assert row["y"] == label


def test_rows_under_numbered_names_are_in_the_order_of_the_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", *[np.full((1, 2), place) for place in range(12)])
    assert [row["features"][0, 0] for row in rows_of(tmp_path / "a.npz")] == list(range(12))


def test_array_shorter_than_the_longest_row_is_not_cut(tmp_path: Path) -> None:
    one_hot = np.eye(4)
    lengths = np.array([3, 0, 1, 5])
    np.savez(tmp_path / "a.npz", features=PADDED, lengths=lengths, target=one_hot)
    rows = rows_of(tmp_path / "a.npz")
    np.testing.assert_array_equal([row["target"] for row in rows], one_hot)


LAYOUT_FAULTS: dict[str, tuple[dict[str, Any], str, int | None, str]] = {
    "offsets that fall": (
        {"x": FLAT, "offsets": np.array([0, 7, 3, 9])},
        "SF102",
        1,
        "its length by offsets is -4",
    ),
    "a negative length": (
        {"x": FLAT, "lengths": np.array([7, 6, -4])},
        "SF102",
        2,
        "its length by lengths is -4",
    ),
    "a length beyond the padding": (
        {"x": PADDED, "lengths": np.array([3, 8, 1, 5])},
        "SF208",
        1,
        "its length by lengths is 8, but x has 7",
    ),
    "rows of two widths": (
        {"a_0": np.zeros((2, 3)), "a_1": np.zeros((2, 3)), "a_2": np.zeros((5, 4))},
        "SF208",
        2,
        "shape [5, 4], but row 0 has [2, 3]",
    ),
    "arrays of two row counts": (
        {"x": np.zeros((3, 2)), "y": np.zeros(2)},
        "SF106",
        None,
        "x has 3, y has 2",
    ),
    "offsets of other values": (
        {"x": FLAT, "offsets": np.array([0, 3, 8]), "y": np.zeros(2)},
        "SF106",
        None,
        "x has 9, y has 2",
    ),
}


@pytest.mark.parametrize("name", LAYOUT_FAULTS)
def test_layout_fault(tmp_path: Path, name: str) -> None:
    arrays, code, row, message = LAYOUT_FAULTS[name]
    np.savez(tmp_path / "a.npz", **arrays)
    found = fault_of(tmp_path / "a.npz")
    assert (found.code, found.where.get("row")) == (code, row)
    assert message in found.message
