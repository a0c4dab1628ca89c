"""Files to Tables: known rows, columns of one type, and faults named by file, line and row."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from builders import write_jsonl
from opening import entry_files
from surefit.data.open_data import open_table
from surefit.data.table import CHUNK_ROWS
from surefit.errors import FindingError, UsageError
from surefit.findings import Finding

ODD = CHUNK_ROWS + 6
"""A row that is not in the first chunk."""


def rows_of(data: Any) -> list[dict[str, Any]]:
    return list(open_table(data).rows())


def fault_of(data: Any) -> Finding:
    with pytest.raises(FindingError) as caught:
        open_table(data)
    assert len(caught.value.findings) == 1
    return caught.value.findings[0]


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_skipping_a_damaged_file_is_advised_where_others_are_left(tmp_path: Path) -> None:
    whole = written(tmp_path / "a.jsonl", '{"a": 1}\n')
    damaged = written(tmp_path / "b.jsonl", '{"a": 1\n')
    assert "on_bad_file" not in fault_of(damaged).fix
    assert fault_of([whole, damaged]).fix.endswith("--set on_bad_file=skip.")
    assert len(list(open_table([whole, damaged], on_bad_file="skip").rows())) == 1
    empty = written(tmp_path / "c.npy", b"")
    assert "on_bad_file" not in fault_of(empty).fix


def test_jsonl_gives_its_rows(tmp_path: Path) -> None:
    rows = [{"text": "één", "label": 1, "share": 0.5, "ok": True}, {"text": "two", "label": 2}]
    assert rows_of(write_jsonl(tmp_path / "a.jsonl", rows)) == [
        rows[0],
        {"text": "two", "label": 2, "share": None, "ok": None},
    ]


def test_blank_lines_and_byte_order_mark_are_skipped(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \n{"a": 2}')
    assert rows_of(path) == [{"a": 1}, {"a": 2}]


def test_nested_values_come_back_as_arrays_and_objects(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    path = write_jsonl(tmp_path / "a.jsonl", [{"f": [[1, 2], [3, 4]], "m": messages}])
    (row,) = rows_of(path)
    np.testing.assert_array_equal(row["f"], [[1, 2], [3, 4]])
    assert row["m"] == messages


GROWTHS: dict[str, tuple[Any, Any, pa.DataType]] = {
    "null to text": (None, "late", pa.string()),
    "integer to float": (1, 2.5, pa.float64()),
    "null to list": (None, [1, 2], pa.list_(pa.int64())),
    "empty list to text list": ([], ["a"], pa.list_(pa.string())),
    "another key in an object": (
        {"a": 1},
        {"b": "x"},
        pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.string())]),
    ),
}


@pytest.mark.parametrize("name", GROWTHS)
def test_schema_grows_after_the_first_chunk(tmp_path: Path, name: str) -> None:
    early, late, kind = GROWTHS[name]
    rows = [{"x": early} for _ in range(ODD)] + [{"x": late}]
    table = open_table(write_jsonl(tmp_path / "a.jsonl", rows))
    assert table.num_rows == ODD + 1
    assert table.column_type("x") == kind


def test_column_that_begins_after_the_first_chunk(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"x": 1} for _ in range(ODD)] + [{"x": 1, "late": "y"}]
    table = open_table(write_jsonl(tmp_path / "a.jsonl", rows))
    assert table.columns == ("x", "late")
    assert table.row(0) == {"x": 1, "late": None}
    assert table.row(ODD) == {"x": 1, "late": "y"}


def test_rows_without_any_column_are_rows(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{} for _ in range(ODD * 2)] + [{"x": [1]}]
    table = open_table(write_jsonl(tmp_path / "a.jsonl", rows))
    assert table.num_rows == ODD * 2 + 1
    assert [table.row(place)["x"] for place in (0, ODD * 2)] == [None, [1]]


MIXTURES: dict[str, tuple[Any, Any, str]] = {
    "text after numbers": (1, "two", "holds text ('two'), but numbers in {} other rows."),
    "number after text": ("one", 2, "holds a number ('2'), but text in {} other rows."),
    "true/false": (1, True, "holds true/false ('True'), but numbers in {} other rows."),
    "list after text": ("one", ["two"], "holds a list (\"['two']\"), but text in {} other rows."),
    "text after objects": ({"a": 1}, "x", "holds text ('x'), but objects in {} other rows."),
    "text in a list of numbers": ([1], ["x"], "but int64 array [*] in {} other rows."),
    "two types in one list": ([1], [1, "x"], "mixes types within one value: \"[1, 'x']\""),
}


@pytest.mark.parametrize("row", [3, ODD])
@pytest.mark.parametrize("name", MIXTURES)
def test_mixed_types_are_named_by_line_row_and_column(tmp_path: Path, name: str, row: int) -> None:
    first, odd, message = MIXTURES[name]
    rows = [{"x": first} for _ in range(row)] + [{"x": odd}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    path.write_text("\n" + path.read_text())  # a blank line parts line numbers from row numbers
    found = fault_of(path)
    assert found.code == "SF103"
    assert found.where == {"file": str(path), "row": row, "line": row + 2, "column": "x"}
    assert message.format(row) in found.message


@pytest.mark.parametrize("row", [0, 5, ODD])
@pytest.mark.parametrize("odd", ["12,5", "7", "n/a", [7.5]])
def test_the_row_of_another_type_is_named_wherever_it_is(
    tmp_path: Path, row: int, odd: Any
) -> None:
    rows = [{"x": odd if number == row else number / 2} for number in range(ODD + 20)]
    found = fault_of(write_jsonl(tmp_path / "a.jsonl", rows))
    assert (found.code, found.where["row"], found.where["line"]) == ("SF103", row, row + 1)
    assert f"line {row + 1}: column 'x' holds" in found.message
    assert f"({str(odd)!r}), but numbers in {ODD + 19} other rows." in found.message


def test_a_few_rows_of_another_type_are_counted_and_the_first_named(tmp_path: Path) -> None:
    odd = {0: "12,5", 4: "n/a", ODD: "-", ODD + 1: "1 234", ODD + 2: "x", ODD + 3: "y"}
    rows = [{"x": odd.get(number, number)} for number in range(ODD + 20)]
    found = fault_of(write_jsonl(tmp_path / "a.jsonl", rows))
    assert found.message == (
        f"a.jsonl, line 1: column 'x' holds text ('12,5'), but numbers in {ODD + 14} other rows "
        f"(5 more like it: lines 5, {ODD + 1}, {ODD + 2}, …)."
    )


def test_mixed_types_are_named_before_a_later_line_that_cannot_be_read(tmp_path: Path) -> None:
    rows = [{"x": "one" if number == 1 else number} for number in range(ODD)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    path.write_text(path.read_text() + "{\n")
    assert fault_of(path).where["line"] == 2


CORRUPT = {
    "half an object": ('{"x": 1', "not valid JSON"),
    "a list": ("[1, 2]", "found list"),
    "a bare word": ("x", "not valid JSON"),
    "a number too long to read": ('{"x": ' + "1" * 5000 + "}", "4300 digits"),
    "nested beyond measure": ('{"x": ' + "[" * 100_000, "not valid JSON"),
    "an integer beyond 64 bits": ('{"x": ' + str(2**70) + "}", "cannot be stored"),
    "half a surrogate pair": ('{"s": "\\ud800"}', "cannot be stored"),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_corrupt_line_is_named(tmp_path: Path, name: str) -> None:
    line, message = CORRUPT[name]
    good = '{"x": 1}\n' * ODD
    path = written(tmp_path / "a.jsonl", f"{good}{line}\n{good}")
    found = fault_of(path)
    assert found.code == "SF102"
    assert (found.where["file"], found.where["line"]) == (str(path), ODD + 1)
    assert found.message.startswith(f"a.jsonl, line {ODD + 1}: ")
    assert message in found.message


def test_integer_that_a_column_of_fractions_cannot_hold(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"x": 1}, {"x": 2**60 + 1}, {"x": 0.5}]
    found = fault_of(write_jsonl(tmp_path / "a.jsonl", rows))
    assert (found.code, found.where["line"], found.where["column"]) == ("SF102", 2, "x")


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_bytes_that_are_not_utf8_are_named(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path / f"a.{ending}", b'{"x": 1}\n{"x": 2}\n{"x": "\xff"}\n')
    found = fault_of(path)
    assert (found.code, found.where["line"]) == ("SF105", 3)
    assert "byte 0xff at position 7" in found.message


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.jsonl", ""), ("a.jsonl", "\n \n"), ("a.csv", ""), ("a.csv", "text,label\n")],
)
def test_file_without_rows(tmp_path: Path, name: str, text: str) -> None:
    path = written(tmp_path / name, text)
    found = fault_of(path)
    assert (found.code, found.where) == ("SF101", {"file": str(path)})


def test_csv_columns_have_the_narrowest_type_of_all_cells(tmp_path: Path) -> None:
    text = 'n,share,code,text\n1,1,007,a\n-2,.5,1,\n,2e3,2,"x, y\nz"\n'
    assert rows_of(written(tmp_path / "a.csv", text)) == [
        {"n": 1, "share": 1.0, "code": "007", "text": "a"},
        {"n": -2, "share": 0.5, "code": "1", "text": None},
        {"n": None, "share": 2000.0, "code": "2", "text": "x, y\nz"},
    ]


def test_csv_number_with_a_late_word_makes_the_column_text(tmp_path: Path) -> None:
    text = "x\n" + "1\n" * ODD + "one\n"
    assert rows_of(written(tmp_path / "a.csv", text))[0] == {"x": "1"}


@pytest.mark.parametrize("cell", ["e4", ".e5", "+", ".", "1_000", "nan", "0x10", "1e"])
def test_csv_cell_that_only_looks_like_a_number_is_text(tmp_path: Path, cell: str) -> None:
    assert rows_of(written(tmp_path / "a.csv", f"x,y\n{cell},1\n")) == [{"x": cell, "y": 1}]


CSV_FAULTS = {
    "too few cells": ('a,b\n1,"x\ny"\n2\n', 4, "1 cells, but the header names 2 columns (a, b)"),
    "too many cells": ("a,b\n1,2\n1,2,3\n", 3, "3 cells, but the header names 2 columns (a, b)"),
    "an open quote": ('a,b\n1,"x\n', 2, "not valid CSV"),
    "a column twice": ("a,b,a\n1,2,3\n", 1, "column 'a' twice"),
    "a column without a name": ("a,,b\n1,2,3\n", 1, "a column without a name"),
}


@pytest.mark.parametrize("name", CSV_FAULTS)
def test_csv_fault_is_named_by_its_line(tmp_path: Path, name: str) -> None:
    text, line, message = CSV_FAULTS[name]
    path = written(tmp_path / "a.csv", text)
    found = fault_of(path)
    assert (found.code, found.where) == ("SF102", {"file": str(path), "line": line})
    assert message in found.message


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "f2", "f8", "i1", "<i8", ">i4", "u2", "bool"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_of_any_dtype_and_byte_order(tmp_path: Path, dtype: str, order: Any) -> None:
    array = np.arange(24).reshape(4, 3, 2).astype(dtype, order=order)
    np.save(tmp_path / "a.npy", array)
    rows = rows_of(tmp_path / "a.npy")
    assert [list(row) for row in rows] == [["features"]] * 4
    np.testing.assert_array_equal(np.stack([row["features"] for row in rows]), array)
    assert rows[0]["features"].dtype == array.dtype.newbyteorder("=")


def test_npy_whose_rows_have_no_steps(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 0, 2)))
    assert [row["features"].shape for row in rows_of(tmp_path / "a.npy")] == [(0, 2)] * 3


def test_npy_text(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", text=np.array(["één", "two"]), raw=np.array([b"a", b"bc"]))
    assert rows_of(tmp_path / "a.npz") == [
        {"text": "één", "raw": "a"},
        {"text": "two", "raw": "bc"},
    ]


NPY_FAULTS: dict[str, tuple[Any, str]] = {
    "pickled objects": (np.array([{"a": 1}], object), "SF104"),
    "a single value": (np.array(3.0), "SF208"),
    "complex numbers": (np.zeros(3, complex), "SF213"),
    "text in two axes": (np.array([["a", "b"]]), "SF213"),
    "bytes that are not text": (np.array([b"\xff"]), "SF105"),
    "no rows": (np.zeros((0, 3)), "SF101"),
}


@pytest.mark.parametrize("name", NPY_FAULTS)
def test_npy_fault(tmp_path: Path, name: str) -> None:
    array, code = NPY_FAULTS[name]
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    assert fault_of(tmp_path / "a.npy").code == code


def _cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _spoil_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[200:260] = b"\xff" * 60
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("a.npy", _cut_short),
        ("a.npy", lambda path: path.write_bytes(b"")),
        ("a.npy", lambda path: path.write_text("this is text")),
        ("a.npz", _cut_short),
        ("a.npz", _spoil_middle),
        ("a.npz", lambda path: path.write_text("this is text")),
    ],
)
def test_damaged_array_file(tmp_path: Path, name: str, spoil: Callable[[Path], Any]) -> None:
    values = np.random.default_rng(0).integers(0, 9, 5000)
    np.save(tmp_path / "a.npy", values)
    np.savez_compressed(tmp_path / "a.npz", x=values)
    spoil(tmp_path / name)
    found = fault_of(tmp_path / name)
    assert found.code == "SF102"
    assert found.where["file"] == str(tmp_path / name)


RAGGED = [np.full((steps, 2), steps, np.float32) for steps in (3, 0, 1, 5)]
FLAT = np.concatenate(RAGGED)
PADDED = np.stack([np.pad(row, ((0, 7 - len(row)), (0, 0)), constant_values=9) for row in RAGGED])
NAMES = np.array([4, 5, 6, 7])

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
