"""Folders of arrays: one row per file, shards, and class folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import fault_of
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


def test_array_of_another_feature_size_is_named(tmp_path: Path) -> None:
    save(tmp_path / "cat", [(4, 3), (6, 3)])
    save(tmp_path / "dog", [(5, 2)])
    found = fault_of(tmp_path)
    assert (found.code, Path(str(found.where["file"])).name) == ("SF208", "r0.npy")
