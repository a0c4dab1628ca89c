"""Tables of text: delimiter, header, quotes and numbers worked out; faults named by line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import surefit
from opening import fault_of, notes_of, rows_of, written
from surefit.config import Reading
from surefit.data.open_data import open_table
from surefit.errors import UsageError
from surefit.findings import Finding

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
    assert code == ""
    assert reason in message
    assert f"the columns are named {', '.join(first)}" in message


@pytest.mark.parametrize(
    "header", ["text\tlabel", "0\t1", "2019\t2020", "Which of these would you rather have today\tb"]
)
def test_header_is_known_as_one(tmp_path: Path, header: str) -> None:
    path = written(tmp_path / "a.tsv", f"{header}\ngood\t1\nbad\t2\ngood\t1\n")
    assert list(rows_of(path)[0]) == header.split("\t")
    assert notes_of(path) == []


def test_blank_lines_before_the_header(tmp_path: Path) -> None:
    assert rows_of(written(tmp_path / "a.csv", "\n\nx,y\n\n1,2\n")) == [{"x": 1, "y": 2}]


def test_index_column_of_pandas(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", ",x\n0,good\n1,bad\n")
    assert rows_of(path)[1] == {"index": 1, "x": "bad"}
    assert "is called index" in notes_of(path)[0][1]


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


def test_rows_with_another_delimiter_than_the_header(tmp_path: Path) -> None:
    found = fault_of(written(tmp_path / "a.csv", "text,label\ngood;1\nbad;2\n"))
    assert (found.code, found.where["line"]) == ("SF102", 2)
    assert "read.delimiter" in found.fix


@pytest.mark.parametrize("first", ["name{}", "{}"])
def test_million_columns_give_a_message(tmp_path: Path, first: str) -> None:
    """One pass over the columns for each of them would never end."""
    header = ",".join(first.format(place + 7) for place in range(1_000_000))
    path = written(tmp_path / "a.csv", f"{header}\n{header}\n")
    found = fault_of(path)
    assert (found.code, found.where) == ("SF110", {"file": str(path), "line": 1})
    assert "has 1000000 columns" in found.message


NUM_ROWS = 60


def table(cell: Callable[[int], str], delimiter: str = ",", header: bool = True) -> str:
    """Prices, sizes and kinds; `cell` gives the sizes."""
    lines = [["price", "size", "kind"]] if header else []
    lines += [[f"{n * 0.5 + n % 3}", cell(n), "ab"[n % 2]] for n in range(NUM_ROWS)]
    return "".join(delimiter.join(line) + "\n" for line in lines)


def one(text: str, row: int = 10) -> Callable[[int], str]:
    """Numbers, but for one cell."""
    return lambda n: text if n == row else str(n * 3.25)


def findings_of(path: Path) -> list[Finding]:
    return [f for f in open_table(path).findings if f.code in ("SF118", "SF119")]


def test_a_text_that_recurs_among_numbers_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", table(lambda n: str(n) if n % 5 else "n/d"))
    (found,) = findings_of(path)
    assert f"cells are not numbers: 'n/d' {-(-NUM_ROWS // 5)} times" in found.message
    assert "read.missing=[n/d]" in str(found.fix)


ODD = ["12,5", "1 234", "€5", "1e5x", "1,234.50", "12 kg", "about 7", "15%"]


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("row", [0, 10, NUM_ROWS - 1])
def test_a_cell_that_is_not_a_number_is_named(tmp_path: Path, text: str, row: int) -> None:
    path = written(tmp_path / "a.csv", table(one(f'"{text}"', row)))
    (found,) = findings_of(path)
    assert (found.code, found.severity) == ("SF118", "warning")
    assert found.where == {"file": str(path), "row": row, "line": row + 2, "column": "size"}
    assert found.message == (
        f"a.csv: column 'size' is read as text, because 1 of its {NUM_ROWS} cells is not a number: "
        f"{text!r} in row {row} (line {row + 2})."
    )


FORMATS: dict[str, tuple[str, str, bool]] = {
    "csv": ("a.csv", ",", True),
    "tsv": ("a.tsv", "\t", True),
    "semicolons": ("a.csv", ";", True),
    "without a header": ("a.csv", ",", False),
    "tsv without a header": ("a.tsv", "\t", False),
    "gzip": ("a.csv.gz", ",", True),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_delimited_format_names_the_row(tmp_path: Path, name: str) -> None:
    file, delimiter, header = FORMATS[name]
    path = written(tmp_path / file, table(one("7 kg"), delimiter, header))
    (found,) = findings_of(path)
    assert (found.where["row"], found.where["line"]) == (10, 11 + header)


def test_markers_of_missing_values_may_be_common(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", table(lambda n: "?" if n % 3 == 1 else str(n)))
    assert findings_of(path) == []
    assert [row["size"] for row in rows_of(path)][:4] == [0, None, 2, 3]


def test_lines_are_counted_over_cells_of_several_lines(tmp_path: Path) -> None:
    rows = [f'"a\nb",{n}' for n in range(8)] + ["c,x"]
    (found,) = findings_of(written(tmp_path / "a.csv", "\n".join(["text,n", *rows])))
    assert (found.where["row"], found.where["line"]) == (8, 18)


def test_spaces_around_numbers_are_no_part_of_them(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "a, b, c\n1, 2, x\n3, 4.5 ,  \n5,  , z\n")
    assert [row[" b"] for row in rows_of(path)] == [2.0, 4.5, None]
    assert findings_of(path) == []


NOT_ODD: dict[str, Callable[[int], str]] = {
    "text": lambda n: f"word {n}",
    "codes with leading zeros": lambda n: f"{n % 7:05d}" if n == 9 else f"{n + 10000}",
    "leading zeros and a mark": lambda n: "n/a" if n == 9 else f"{n:03d}",
    "common text": lambda n: f"A{n}" if n % 8 == 0 else str(n),
    "classes and a word": lambda n: "unknown" if n % 10 == 0 else str(n % 4),
    "dates": lambda n: f"2011-01-{n % 28 + 1:02d}",
    "numbers": lambda n: str(n),
    "fractions and blanks": lambda n: "" if n % 2 else f"{n}e-3",
    "only marks": lambda n: "n/a",
    "mostly marks": lambda n: "n/a" if n % 4 else str(n),
}


@pytest.mark.parametrize("name", NOT_ODD)
def test_other_columns_are_not_complained_of(tmp_path: Path, name: str) -> None:
    assert findings_of(written(tmp_path / "a.csv", table(NOT_ODD[name]))) == []


GERMAN = "area;price;code;answer\n" + "".join(
    f"{40 + n},5;{n + 1}.{100 + n},99 €;0{n};{n},5\n" for n in range(9)
)


def test_numbers_in_another_notation_are_named_and_read_when_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path / "flats.csv", GERMAN)
    found = [f for f in open_table(path).findings if f.code == "SF118"]
    assert [f.where["column"] for f in found] == ["area", "price", "answer"]
    assert "'1.100,99 €' (row 0, line 2)" in found[1].message
    assert found[1].fix == "To read them as numbers (1100.99): --set read.decimal=comma."
    row = open_table(path, Reading(decimal="comma")).row(8)  # an answer is a text
    assert row == {"area": 48.5, "price": 9108.99, "code": "08", "answer": "8,5"}


@pytest.mark.parametrize(
    "texts", [["1.2.3", "1.2.4"], ["10 11 12", "12 13 14"], ["12-13", "14-15"], ["4 kg", "5 kg"]]
)
def test_codes_are_no_numbers_in_another_notation(tmp_path: Path, texts: list[str]) -> None:
    path = written(tmp_path / "codes.tsv", "a\tb\n" + f"{texts[0]}\t1\n{texts[1]}\t2\n" * 5)
    assert [f.code for f in open_table(path).findings] == []


def test_what_thousands_are_grouped_with_is_the_same_in_all_columns(tmp_path: Path) -> None:
    lines = "".join(f'"{n},100","{n},200.5"\n' for n in range(1, 9))
    path = written(tmp_path / "both.csv", f"a,b\n{lines}")
    found = [f for f in open_table(path).findings if f.code == "SF118"]
    assert {f.fix.partition("--set ")[2] for f in found} == {"read.decimal=point."}
    assert open_table(path, Reading(decimal="point")).row(0) == {"a": 1100, "b": 1200.5}


def test_a_header_between_the_rows_is_named_once(tmp_path: Path) -> None:
    half = table(lambda n: str(n))
    path = written(tmp_path / "a.csv", half + half)
    (found,) = findings_of(path)
    assert found.code == "SF119"
    assert found.where == {"file": str(path), "row": NUM_ROWS, "line": NUM_ROWS + 2}
    assert found.message == (
        "a.csv: line 62 (row 60) repeats the header. It turns columns of numbers into text: "
        "'price', 'size'."
    )


def test_files_that_differ_by_an_odd_cell_name_it(tmp_path: Path) -> None:
    first = written(tmp_path / "a.csv", table(lambda n: str(n)))
    second = written(tmp_path / "b.csv", table(one("7 kg")))
    found = fault_of([first, second])
    assert (found.code, found.where["row"], found.where["column"]) == ("SF106", 10, "size")
    assert "'7 kg' in row 10 (line 12)" in found.message


def write_roles(folder: Path, **odd: str) -> Path:
    """A table to be learned from, with one odd cell in row 10."""
    rows = [{"price": f"{n * 2.5}", "size": f"{n % 40}", "age": f"{n * 7 % 11}"} for n in range(90)]
    rows[10] |= odd
    lines = [",".join(rows[0]), *(",".join(f'"{v}"' for v in row.values()) for row in rows)]
    return written(folder / "a.csv", "\n".join(lines))


def test_columns_that_are_read_as_text_may_hold_numbers(tmp_path: Path) -> None:
    """Answers are text, whatever most of them look like; so are columns that nothing reads."""
    rows = [f"what is {n} plus 1?,{'x+1' if n == 7 else n + 1},{n}\n" for n in range(60)]
    rows[5] = rows[5].replace(",5\n", ",5 of 7\n")
    path = written(tmp_path / "a.csv", "prompt,answer,level\n" + "".join(rows))
    assert len(findings_of(path)) == 2
    plan = surefit.check(data=str(path), model="tiny:llama", task="sft")
    assert "SF118" not in [found.code for found in plan.findings]


def test_rows_to_predict_for_name_the_row_that_made_their_column_text(tmp_path: Path) -> None:
    path = write_roles(tmp_path)
    options = {"task": "regression", "columns": {"label": "price"}, "max_steps": 2}
    run = surefit.train(data=str(path), model="tiny:mlp", output=str(tmp_path / "run"), **options)
    (tmp_path / "odd").mkdir()
    assert len(list(surefit.predict(run, [{"size": "n/a", "age": 3}]))) == 1
    odd = write_roles(tmp_path / "odd", size="7 kg")
    with pytest.raises(surefit.FindingError) as caught:
        list(surefit.predict(run, str(odd)))
    (found,) = caught.value.findings
    assert (found.where["row"], found.where["column"]) == (10, "size")
    numbers = [{"size": n, "age": n % 11} for n in range(5)]
    texts = [{name: str(value) for name, value in row.items()} for row in numbers]
    assert list(surefit.predict(run, texts)) == list(surefit.predict(run, numbers))


def test_a_number_that_is_named_as_missing_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,2\n-999,3\n 4,-999 \n")
    table = open_table(path, Reading(missing=("-999",)))
    assert list(table.rows()) == [{"x": 1, "y": 2}, {"x": None, "y": 3}, {"x": 4, "y": None}]
    assert open_table(path).arrow["x"].to_pylist() == [1, -999, 4]
