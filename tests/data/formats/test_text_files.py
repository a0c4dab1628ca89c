"""Text files: their encoding, their lines and JSON lines; faults named by file, line and row."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from builders import write_jsonl
from opening import ODD, fault_of, notes_of, rows_of, written
from surefit.config import Reading
from surefit.data.formats.text_decoding import CHUNK_BYTES, TextFile
from surefit.data.open_data import open_table
from surefit.errors import UsageError


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


def test_csv_columns_have_the_narrowest_type_of_all_cells(tmp_path: Path) -> None:
    text = 'n,share,code,text\n1,1,007,a\n-2,.5,1,\n,2e3,2,"x, y\nz"\n'
    assert rows_of(written(tmp_path / "a.csv", text)) == [
        {"n": 1, "share": 1.0, "code": "007", "text": "a"},
        {"n": -2, "share": 0.5, "code": "1", "text": None},
        {"n": None, "share": 2000.0, "code": "2", "text": "x, y\nz"},
    ]


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


ENDINGS = {
    "txt": "{}\n",
    "csv": "text\n{}\n",
    "tsv": "text\tn\n{}\t1\n",
    "jsonl": '{{"text": "{}"}}\n',
    "json": '[{{"text": "{}"}}]\n',
}


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_western_text_is_read_with_a_note(tmp_path: Path, ending: str, packed: str) -> None:
    raw = ENDINGS[ending].format("a café’s menu").encode("cp1252")
    path = written(tmp_path / f"a.{ending}{packed}", raw)
    assert rows_of(path)[-1]["text"] == "a café’s menu"
    (message,) = [message for code, message in notes_of(path) if code == "SF111"]
    line = 2 if ending in ("csv", "tsv") else 1
    assert message.startswith(f"a.{ending}{packed}, line {line}: byte 0xe9 is not UTF-8")


def test_named_encoding_is_taken_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "café".encode("latin-1"))
    assert rows_of(path, encoding="latin-1") == [{"text": "café"}]
    found = fault_of(path, encoding="utf-8")
    assert (found.code, found.where["line"]) == ("SF105", 1)
    with pytest.raises(UsageError, match="which Python does not know"):
        rows_of(path, encoding="klingon")


NO_TEXT = {
    "a zero byte": (b"fine\nzero\x00byte\n", 2, "byte 0x00 at position 4 is not text"),
    "UTF-8, then other bytes": ("één\n".encode() + b"\n\xe9 word\n", 3, "is not UTF-8"),
    "Windows-1252, then UTF-8": (b"caf\xe9 au lait\n" + "één deux\n".encode(), 2, "nor, as line 1"),
    "Cyrillic in another encoding": ("fine\nПривет, мир".encode("cp1251"), 2, "is not UTF-8"),
    "control characters": (b"fine\n\xe9\x01\x02\n", 2, "is not UTF-8"),
}


@pytest.mark.parametrize("name", NO_TEXT)
def test_bytes_that_are_no_text_are_named(tmp_path: Path, name: str) -> None:
    raw, line, message = NO_TEXT[name]
    found = fault_of(written(tmp_path / "a.txt", raw))
    assert (found.code, found.where["line"]) == ("SF105", line)
    assert message in found.message


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_wide_characters(tmp_path: Path, encoding: str) -> None:
    path = written(tmp_path / "a.csv", "text,label\nčaj,1\n".encode(encoding))
    named = {} if encoding == "utf-16" else {"encoding": encoding}
    assert rows_of(path, **named) == [{"text": "čaj", "label": 1}]


def test_chunks_do_not_cut_characters(tmp_path: Path) -> None:
    text = "x" * (CHUNK_BYTES - 1) + "\n€€ and on"
    path = written(tmp_path / "a.txt", text)
    for cut in range(4):
        path.write_bytes(b"y" * cut + text.encode())
        assert "".join(TextFile(path, Reading()).chunks()) == "y" * cut + text
    assert [line for _, line in TextFile(path, Reading()).lines()][1] == "€€ and on"


@pytest.mark.parametrize("ending", [*ENDINGS, "conll", "ts", "de"])
def test_truncated_and_empty_gzip(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}.gz"
    packed = gzip.compress(bytes(range(32, 127)) * 50)
    path.write_bytes(packed[:-12])
    found = fault_of(path)
    assert (found.code, found.where["file"]) == ("SF102", str(path))
    assert "damaged gzip" in found.message
    for empty in (b"", gzip.compress(b"")):
        path.write_bytes(empty)
        assert fault_of(path).code == "SF101"


def test_every_line_is_a_row(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "one\r\n\n three \nfour")
    assert [row["text"] for row in rows_of(path)] == ["one", "", " three ", "four"]
    assert notes_of(path) == []


def test_text_under_another_ending_is_read_with_a_note(tmp_path: Path) -> None:
    path = written(tmp_path / "corpus.old", "one\ntwo\n")
    assert rows_of(path) == [{"text": "one"}, {"text": "two"}]
    assert notes_of(path) == [("", "corpus.old is read as text, one row per line.")]


TREC = "DESC:manner How so ?\nENTY:animal What is it ?\nDESC:def What 's a def ?\nENTY:food Eat ?\n"


def test_label_and_finer_label_at_the_front(tmp_path: Path) -> None:
    path = written(tmp_path / "TREC.train", TREC)
    assert rows_of(path)[1] == {"label": "ENTY", "fine": "animal", "text": "What is it ?"}
    ((code, message),) = notes_of(path)
    assert (code, "label, fine, text" in message) == ("", True)


def test_line_without_the_label_of_the_others_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", TREC * 300 + "no label here\n")
    found = fault_of(path)
    assert (found.code, found.where) == ("SF102", {"file": str(path), "line": 1201})
    assert "'LABEL:fine text'" in found.message


@pytest.mark.parametrize(
    "text",
    [
        "First Citizen:\nSpeak.\nAll:\nSpeak, speak.\n",
        "see http://a.b c\nx:y z\nu:v w\na:b c\n",
        "one:a x\ntwo:b x\nthree:c x\nfour:d x\n",
    ],
)
def test_text_with_colons_stays_text(tmp_path: Path, text: str) -> None:
    assert list(rows_of(written(tmp_path / "a.txt", text))[0]) == ["text"]


def test_fasttext_lines(tmp_path: Path) -> None:
    one = "__label__a good thing\n__label__b bad\n__label__a fine\n\n__label__b\n"
    rows = rows_of(written(tmp_path / "one.txt", one))
    assert [row["label"] for row in rows] == ["a", "b", "a", "b"]
    assert [row["text"] for row in rows] == ["good thing", "bad", "fine", None]
    several = one * 400 + "__label__a __label__b both\n"
    rows = rows_of(written(tmp_path / "several.txt", several))
    assert (rows[0]["label"], rows[-1]["label"]) == (["a"], ["a", "b"])


def test_pattern_overrules(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "3 stars: good\n1 stars: bad\n\nno stars\n")
    pattern = r"(?P<stars>\d) stars: (?P<text>.*)"
    found = fault_of(path, pattern=pattern)
    assert (found.code, found.where["line"]) == ("SF102", 4)
    path.write_text("3 stars: good\n1 stars: bad\n")
    assert rows_of(path, pattern=pattern)[1] == {"stars": "1", "text": "bad"}
    assert rows_of(written(tmp_path / "t", TREC), pattern="(?P<text>.*)")[0] == {
        "text": "DESC:manner How so ?"
    }
    for wrong in ("(", "no groups"):
        with pytest.raises(UsageError, match=r"read\.pattern is"):
            rows_of(path, pattern=wrong)


def test_two_texts_of_equal_length_are_source_and_target(tmp_path: Path) -> None:
    english = written(tmp_path / "train.en.gz", "a dog\n\ntwo dogs\n")
    german = written(tmp_path / "train.de", "ein Hund\nleer\nzwei Hunde")
    assert rows_of([english, german])[2] == {"source": "two dogs", "target": "zwei Hunde"}
    ((code, message),) = notes_of([english, german])
    assert code == ""
    assert "train.en.gz has 3 lines, train.de has 3" in message


def test_pair_of_different_length_is_refused_with_both_counts(tmp_path: Path) -> None:
    files = [written(tmp_path / "a.en", "1\n2\n3\n"), written(tmp_path / "a.de", "1\n2\n")]
    found = fault_of(files)
    assert (found.code, found.where) == ("SF106", {"file": str(files[1]), "line": 3})
    assert "a.en has 3 lines, a.de has 2" in found.message


def test_two_texts_of_different_length_are_read_with_a_warning(tmp_path: Path) -> None:
    files = [written(tmp_path / "a.txt", "1\n2\n3\n"), written(tmp_path / "b.txt", "4\n5\n")]
    assert [row["text"] for row in rows_of(files)] == list("12345")
    assert notes_of(files)[0][0] == "SF117"
    assert open_table(files).where(3) == {"file": str(files[1]), "row": 0}


def test_texts_of_a_folder_are_parts_of_one_text(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "README.txt", "settings.yaml"):
        written(tmp_path / name, f"{name}\n")
    assert [row["text"] for row in rows_of(tmp_path)] == ["a.txt", "b.txt"]


def test_folder_prefers_data_to_what_lies_beside_it(tmp_path: Path) -> None:
    written(tmp_path / "notes.txt", "a note")
    written(tmp_path / "info.json", '{"name": "x"}')
    written(tmp_path / "LICENSE", "free")
    assert rows_of(tmp_path) == [{"name": "x"}]
    written(tmp_path / "train.csv", "x\n1\n")
    assert rows_of(tmp_path) == [{"x": 1}]
