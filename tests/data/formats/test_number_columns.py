"""A few cells that are not numbers make a column text: they are named by row and line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import surefit
from opening import fault_of, notes_of, rows_of, written
from surefit.data.open_data import open_table
from surefit.findings import Finding
from surefit.plan.plan import Plan

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


ODD = ["12,5", "1 234", "n/a", "-", "€5", "1e5x", "1,234.50", "12 kg", "?", "NaN", "about 7", "15%"]


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
    path = written(tmp_path / file, table(one("n/a"), delimiter, header))
    (found,) = findings_of(path)
    assert (found.where["row"], found.where["line"]) == (10, 11 + header)


def test_cells_are_counted_and_the_first_few_shown(tmp_path: Path) -> None:
    odd = {3: '"12,5"', 7: "n/a", 8: "n/a", 20: "-", 40: "?"}
    path = written(tmp_path / "a.csv", table(lambda n: odd.get(n, "" if n == 5 else str(n))))
    (found,) = findings_of(path)
    assert found.message == (
        "a.csv: column 'size' is read as text, because 5 of its 59 cells are not numbers: '12,5' "
        "in row 3 (line 5), 'n/a' 2 times, first in row 7 (line 9), '-' in row 20 (line 22), …."
    )


def test_marks_of_missing_values_may_be_common(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", table(lambda n: "?" if n % 3 == 1 else str(n)))
    (found,) = findings_of(path)
    assert "20 of its 60 cells are not numbers: '?' 20 times, first in row 1" in found.message


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
    "all with a comma": lambda n: f'"{n},5"',
}


@pytest.mark.parametrize("name", NOT_ODD)
def test_other_columns_are_not_complained_of(tmp_path: Path, name: str) -> None:
    assert findings_of(written(tmp_path / "a.csv", table(NOT_ODD[name]))) == []


def test_text_is_told_early_and_for_certain(tmp_path: Path) -> None:
    """A column that begins with many words is text, however many numbers follow."""
    path = written(tmp_path / "a.csv", "a,b\n" + "x,1\n" * 40 + "7,1\n" * 4000)
    assert findings_of(path) == []


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


def test_a_header_between_rows_of_text_is_named(tmp_path: Path) -> None:
    text = "text,label\n" + "".join(f"some words {n},{'ab'[n % 2]}\n" for n in range(9))
    codes = [code for code, _ in notes_of(written(tmp_path / "a.csv", text * 3))]
    assert codes == ["SF119"]
    (found,) = findings_of(tmp_path / "a.csv")
    assert found.message == "a.csv: line 11 (row 9) repeats the header (and 1 more line like it)."


def test_files_that_differ_by_an_odd_cell_name_it(tmp_path: Path) -> None:
    first = written(tmp_path / "a.csv", table(lambda n: str(n)))
    second = written(tmp_path / "b.csv", table(one("n/a")))
    found = fault_of([first, second])
    assert (found.code, found.where["row"], found.where["column"]) == ("SF106", 10, "size")
    assert "'n/a' in row 10 (line 12)" in found.message


def write_roles(folder: Path, **odd: str) -> Path:
    """A table to be learned from, with one odd cell in row 10."""
    rows = [{"price": f"{n * 2.5}", "size": f"{n % 40}", "age": f"{n * 7 % 11}"} for n in range(90)]
    rows[10] |= odd
    lines = [",".join(rows[0]), *(",".join(f'"{v}"' for v in row.values()) for row in rows)]
    return written(folder / "a.csv", "\n".join(lines))


def plan_of(path: Path, **options: Any) -> Plan:
    return surefit.check(data=str(path), model="tiny:mlp", **options)


@pytest.mark.parametrize("eval_share", [0.0, 0.9])
def test_a_target_is_refused_for_the_row_that_made_it_text(
    tmp_path: Path, eval_share: float
) -> None:
    path = write_roles(tmp_path, price="12,5")
    options = {"columns": {"label": "price"}, "eval_share": eval_share}
    plan = plan_of(path, task="regression", **options)
    assert [found.code for found in plan.findings] == ["SF118", "SF230"]
    error = plan.findings[-1]
    assert error.message == "row 10: the target '12,5' is not a number"
    assert (error.where["row"], error.where["column"]) == (10, "price")


@pytest.mark.parametrize("column", ["size", "age"])
def test_an_input_that_is_text_by_a_cell_is_warned_of(tmp_path: Path, column: str) -> None:
    path = write_roles(tmp_path, **{column: "n/a"})
    plan = plan_of(path, task="regression", columns={"label": "price"})
    assert plan.ok, plan.findings
    (found,) = [found for found in plan.findings if found.severity == "warning"]
    assert (found.code, found.where["column"], found.where["row"]) == ("SF118", column, 10)


def test_a_label_that_is_text_by_a_cell_is_warned_of(tmp_path: Path) -> None:
    path = write_roles(tmp_path, price="12,5")
    plan = plan_of(path, task="tabular-classification", columns={"label": "price"})
    assert [found.code for found in plan.findings] == ["SF118", "SF205"]
    assert plan.findings[-1].message.endswith("too many to be classes; all but '12,5' are numbers.")


def test_columns_that_are_read_as_text_may_hold_numbers(tmp_path: Path) -> None:
    """Answers are text, whatever most of them look like; so are columns that nothing reads."""
    rows = [f"what is {n} plus 1?,{'x+1' if n == 7 else n + 1},{n}\n" for n in range(60)]
    rows[5] = rows[5].replace(",5\n", ",?\n")
    path = written(tmp_path / "a.csv", "prompt,answer,level\n" + "".join(rows))
    assert len(findings_of(path)) == 2
    plan = surefit.check(data=str(path), model="tiny:llama", task="sft")
    assert "SF118" not in [found.code for found in plan.findings]


def test_rows_to_predict_for_name_the_row_that_made_their_column_text(tmp_path: Path) -> None:
    path = write_roles(tmp_path)
    options = {"task": "regression", "columns": {"label": "price"}, "max_steps": 2}
    run = surefit.train(data=str(path), model="tiny:mlp", output=str(tmp_path / "run"), **options)
    (tmp_path / "odd").mkdir()
    odd = write_roles(tmp_path / "odd", size="n/a")
    with pytest.raises(surefit.FindingError) as caught:
        list(surefit.predict(run, str(odd)))
    (found,) = caught.value.findings
    assert (found.where["row"], found.where["column"]) == (10, "size")
    numbers = [{"size": n, "age": n % 11} for n in range(5)]
    texts = [{name: str(value) for name, value in row.items()} for row in numbers]
    assert list(surefit.predict(run, texts)) == list(surefit.predict(run, numbers))
