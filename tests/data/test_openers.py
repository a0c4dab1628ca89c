"""Several files, folders and Python rows to Tables; what the cache keeps of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import write_jsonl
from opening import FLAT, NAMES, ODD, RAGGED, entry_files, fault_of, rows_of, written
from surefit.data.open_data import open_table
from surefit.errors import UsageError


def test_skipping_a_damaged_file_is_advised_where_others_are_left(tmp_path: Path) -> None:
    whole = written(tmp_path / "a.jsonl", '{"a": 1}\n')
    damaged = written(tmp_path / "b.jsonl", '{"a": 1\n')
    assert "on_bad_file" not in fault_of(damaged).fix
    assert fault_of([whole, damaged]).fix.endswith("--set on_bad_file=skip.")
    assert len(list(open_table([whole, damaged], on_bad_file="skip").rows())) == 1
    empty = written(tmp_path / "c.npy", b"")
    assert "on_bad_file" not in fault_of(empty).fix


def test_several_files_are_concatenated_and_rows_keep_their_file(tmp_path: Path) -> None:
    first = write_jsonl(tmp_path / "a.jsonl", [{"x": 1}, {"x": 2}])
    second = written(tmp_path / "b.csv", "x,late\n2.5,y\n")
    table = open_table([first, second])
    assert list(table.rows()) == [
        {"x": 1.0, "late": None},
        {"x": 2.0, "late": None},
        {"x": 2.5, "late": "y"},
    ]
    assert table.where(1) == {"file": str(first), "row": 1}
    assert table.where(2) == {"file": str(second), "row": 0}
    assert table.row(2)["late"] == "y"


def test_files_with_other_types_do_not_go_together(tmp_path: Path) -> None:
    first = write_jsonl(tmp_path / "a.jsonl", [{"x": 1}])
    second = write_jsonl(tmp_path / "b.jsonl", [{"x": "y"}])
    found = fault_of([first, second])
    assert (found.code, found.where) == ("SF106", {"file": str(second)})


def test_folder_is_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in "cab":
        write_jsonl(tmp_path / f"{name}.jsonl", [{"x": name}])
    written(tmp_path / "notes.md", "not data")
    assert [row["x"] for row in rows_of(tmp_path)] == ["a", "b", "c"]


def test_npy_files_of_different_ranks_are_columns(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", FLAT)
    np.save(tmp_path / "lengths.npy", np.array([3, 0, 1, 5]))
    np.save(tmp_path / "y.npy", NAMES)
    rows = rows_of(tmp_path)
    assert [row["y"] for row in rows] == NAMES.tolist()
    np.testing.assert_array_equal(rows[3]["X"], RAGGED[3])


def test_npy_files_of_one_rank_are_shards(tmp_path: Path) -> None:
    paths = [tmp_path / "one" / "x.npy", tmp_path / "two" / "x.npy"]
    for place, path in enumerate(paths):
        path.parent.mkdir()
        np.save(path, np.full((2 + place, 3), place))
    table = open_table(paths)
    assert [row["features"][0] for row in table.rows()] == [0, 0, 1, 1, 1]
    assert table.where(3) == {"file": str(paths[1]), "row": 1}


@pytest.mark.parametrize(("shape", "code"), [((3, 2, 2), "SF106"), ((0, 2, 2), "SF101")])
def test_npy_files_whose_rows_do_not_match(
    tmp_path: Path, shape: tuple[int, ...], code: str
) -> None:
    np.save(tmp_path / "X.npy", np.zeros(shape))
    np.save(tmp_path / "y.npy", np.zeros(2 if shape[0] else 0))
    found = fault_of(tmp_path)
    assert found.code == code
    assert code == "SF101" or "X has 3, y has 2" in found.message


def test_missing_path_and_unknown_ending_are_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no file or folder"):
        open_table(tmp_path / "nope.jsonl")
    with pytest.raises(UsageError, match=r"has the ending '.xlsx'; expected .jsonl, "):
        open_table(written(tmp_path / "a.xlsx", b"PK\0"))


def test_list_of_dicts_with_arrays(tmp_path: Path) -> None:
    rows = [
        {"features": None, "label": 0},
        {"features": RAGGED[0], "label": np.int64(1)},
        {"features": RAGGED[3], "label": 2},
    ]
    opened = rows_of(rows)
    assert [row["label"] for row in opened] == [0, 1, 2]
    assert [row["features"].shape for row in opened] == [(0, 2), (3, 2), (5, 2)]


def test_list_of_dicts_faults_are_named_by_row() -> None:
    assert fault_of([{"x": 1}, [2]]).where == {"row": 1}
    found = fault_of([{"x": RAGGED[0]}, {"x": "text"}])
    assert (found.code, found.where) == ("SF213", {"row": 1, "column": "x"})
    mixed: list[dict[str, Any]] = [{"x": 1} for _ in range(ODD)] + [{"x": "y"}]
    assert fault_of(mixed).where["row"] == ODD


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.npz", "a.npy"])
def test_second_opening_converts_nothing_again(tmp_path: Path, cache: Path, name: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / name
    if name == "a.npy":
        np.save(path, np.asfortranarray(np.arange(6.0).reshape(3, 2)))
    elif name == "a.npz":
        np.savez(path, x=np.arange(6))
    else:
        written(path, {"a.jsonl": '{"x": 1}\n', "a.csv": "x\n1\n"}[name])
    first = open_table(path)
    converted = entry_files(cache)
    assert converted
    second = open_table(path)
    assert second.key == first.key
    assert second.arrow.equals(first.arrow)
    assert entry_files(cache) == converted
    assert os.listdir(folder) == [name], "nothing is written beside the user's data"


def test_changed_file_is_converted_again(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"x": 1}])
    before = open_table(path)
    write_jsonl(path, [{"x": 2}])
    after = open_table(path)
    assert (before.row(0), after.row(0)) == ({"x": 1}, {"x": 2})
    assert before.key != after.key


def test_failed_opening_leaves_no_table_behind(tmp_path: Path, cache: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"x": 1}\n' * ODD + "oops\n")
    fault_of(path)
    assert not entry_files(cache)


def test_real_jsonl_opens_row_for_row(shared: Path) -> None:
    path = shared / "data" / "gsm8k" / "test.jsonl"
    expected = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    assert rows_of(path) == expected
