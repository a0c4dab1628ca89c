"""Text files to Tables: known rows, columns of one type, faults named by file, line and row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from builders import write_jsonl
from opening import ODD, fault_of, rows_of, written
from surefit.data.open_data import open_table


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
