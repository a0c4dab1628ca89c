"""Tables of text: delimiter, header and quotes worked out; faults named by line."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any

import pytest

from opening import fault_of, notes_of, rows_of, written
from surefit.config import make_config
from surefit.errors import UsageError

ROWS = [{"text": "good, really", "label": "a"}, {"text": "bad", "label": "b"}]


@pytest.mark.parametrize("ending", ["csv", "tsv"])
@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_delimiter_is_worked_out(tmp_path: Path, ending: str, delimiter: str) -> None:
    lines = [["text", "label"], ['"good, really"', "a"], ["bad", "b"]]
    path = written(tmp_path / f"a.{ending}", "\n".join(delimiter.join(line) for line in lines))
    assert rows_of(path) == ROWS
    usual = {"csv": ",", "tsv": "\t"}[ending]
    assert bool(notes_of(path)) == (delimiter != usual)


def test_named_delimiter_overrules(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "a,b;c\n1,2;3\n")
    assert rows_of(path) == [{"a": 1, "b;c": "2;3"}]
    assert rows_of(path, delimiter=";") == [{"a,b": "1,2", "c": 3}]
    assert rows_of(written(tmp_path / "b.csv", "a~b\n1~2\n"), delimiter="~") == [{"a": 1, "b": 2}]
    assert rows_of(written(tmp_path / "c.csv", "a\tb\n1\t2\n"), delimiter="\\t")[0]["b"] == 2
    with pytest.raises(UsageError, match="expected one character"):
        rows_of(path, delimiter="ab")


HEADERLESS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a class that occurs again": (
        "ham\tsee you there at ten\nspam\twin a prize now\nham\tok then, see you\n",
        {"label": "ham", "text": "see you there at ten"},
        "'ham' in line 1 occurs again in later lines",
    ),
    "numbers": ("1\t0.5\n2\t0.25\n", {"column_0": 1, "column_1": 0.5}, "contains the number 1"),
    "numbers and a class": (
        "5.1\t3.5\tsetosa\n4.9\t3.0\tsetosa\n6.3\t2.5\tvirginica\n",
        {"column_0": 5.1, "column_1": 3.5, "label": "setosa"},
        "contains the number 5.1",
    ),
    "a sentence": (
        "one two three four five six seven eight nine\tx\n"
        "nine eight seven six five four three two one zero\ty\n",
        {"text": "one two three four five six seven eight nine", "label": "x"},
        "contains the sentence 'one two",
    ),
}


@pytest.mark.parametrize("name", HEADERLESS)
def test_table_without_header(tmp_path: Path, name: str) -> None:
    text, first, reason = HEADERLESS[name]
    path = written(tmp_path / "a.tsv", text)
    rows = rows_of(path)
    assert rows[0] == first
    assert len(rows) == text.count("\n")
    ((code, message),) = notes_of(path)
    assert code == "SF112"
    assert reason in message
    assert f"the columns are named {', '.join(first)}" in message


@pytest.mark.parametrize(
    "header", ["text\tlabel", "0\t1", "2019\t2020", "Which of these would you rather have today\tb"]
)
def test_header_is_known_as_one(tmp_path: Path, header: str) -> None:
    path = written(tmp_path / "a.tsv", f"{header}\ngood\t1\nbad\t2\ngood\t1\n")
    assert list(rows_of(path)[0]) == header.split("\t")
    assert notes_of(path) == []


def test_repeated_header_is_still_a_header(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "text,label\ngood,x\ntext,label\nbad,y\n")
    assert list(rows_of(path)[0]) == ["text", "label"]


def test_blank_lines_before_the_header(tmp_path: Path) -> None:
    assert rows_of(written(tmp_path / "a.csv", "\n\nx,y\n\n1,2\n")) == [{"x": 1, "y": 2}]


def test_index_column_of_pandas(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", ",x\n0,good\n1,bad\n")
    assert rows_of(path)[1] == {"index": 1, "x": "bad"}
    assert "is called index" in notes_of(path)[0][1]


def test_names_must_differ() -> None:
    with pytest.raises(UsageError, match="must be distinct"):
        make_config({"read.names": ["a", "a"]})


def test_given_names_overrule(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", "ham\tgo\nham\tstay\n")
    assert rows_of(path, names=("kind", "words"))[0] == {"kind": "ham", "words": "go"}
    headed = written(tmp_path / "b.tsv", "kind\twords\nham\tgo\n")
    assert rows_of(headed, names=("kind", "words")) == [{"kind": "ham", "words": "go"}]
    found = fault_of(path, names=("a", "b", "c"))
    assert (found.code, found.where["line"]) == ("SF102", 1)
    assert "2 cells, but there are 3 columns (a, b, c)" in found.message


def test_quotes_that_are_no_quotes(tmp_path: Path) -> None:
    text = 'ham\t"go on\nspam\twin "big" now\nham\t"yes" he said\n'
    path = written(tmp_path / "a.tsv", text)
    assert [row["text"] for row in rows_of(path)] == ['"go on', 'win "big" now', '"yes" he said']
    assert any("quotes are read as part of the text" in message for _, message in notes_of(path))


def test_quotes_that_are_quotes(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", 'text\tn\n"a\tb"\t1\n"say ""hi"""\t2\n"two\nlines"\t3\n')
    assert [row["text"] for row in rows_of(path)] == ["a\tb", 'say "hi"', "two\nlines"]


def test_other_number_of_cells_is_named_by_line(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", "text\tlabel\ngood\t1\nbad\t2\t3\n")
    found = fault_of(path)
    assert (found.code, found.where) == ("SF102", {"file": str(path), "line": 3})
    assert "3 cells, but the header names 2 columns" in found.message


def test_rows_with_another_delimiter_than_the_header(tmp_path: Path) -> None:
    found = fault_of(written(tmp_path / "a.csv", "text,label\ngood;1\nbad;2\n"))
    assert (found.code, found.where["line"]) == ("SF102", 2)
    assert "read.delimiter" in found.fix


@pytest.mark.parametrize("first", ["name{}", "{}"])
def test_million_columns_give_a_message_within_seconds(tmp_path: Path, first: str) -> None:
    header = ",".join(first.format(place + 7) for place in range(1_000_000))
    path = written(tmp_path / "a.csv", f"{header}\n{header}\n")
    began = time.process_time()
    next(csv.reader([header]))
    once = time.process_time() - began
    began = time.process_time()
    found = fault_of(path)
    assert (found.code, found.where) == ("SF110", {"file": str(path), "line": 1})
    assert "has 1000000 columns" in found.message
    assert time.process_time() - began < 200 * once  # one pass over the columns for each is 10⁶


@pytest.mark.slow
def test_thousands_of_columns_are_read(tmp_path: Path) -> None:
    header = ",".join(f"name{place}" for place in range(3000))
    path = written(tmp_path / "a.csv", f"{header}\n" + ",".join("1" for _ in range(3000)) + "\n")
    assert rows_of(path) == [{f"name{place}": 1 for place in range(3000)}]


def test_million_keys_give_a_message(tmp_path: Path) -> None:
    keys = ",".join(f'"k{place}":1' for place in range(200_000))
    assert fault_of(written(tmp_path / "a.jsonl", f"{{{keys}}}\n")).code == "SF110"


def test_sms_spam(shared: Path) -> None:
    path = shared / "data" / "sms-spam" / "sms.tsv"
    lines = path.read_text(encoding="utf-8").split("\n")
    expected = [
        dict(zip(("label", "text"), line.split("\t"), strict=True)) for line in lines if line
    ]
    assert rows_of(path) == expected
    assert len(expected) == 5574
