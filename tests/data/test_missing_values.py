"""Cells of columns: markers of missing values, and dates as they are commonly written."""

from __future__ import annotations

import csv
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

import surefit
from surefit.config import Reading
from surefit.data.open_data import open_table
from surefit.data.table import Table
from surefit.data.written_values import ORDERS, find_missing, read_date
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import Settings

MARKERS = ("NA", "N/A", "#N/A", "?", "nan", "null", "-", " n.a. ", "<NA>", "NaT", "")
COLUMNS = ("size", "day", "colour", "label")


def _rows() -> list[dict[str, Any]]:
    """Numbers, dates, categories and a target, of which every marker is in each once."""
    rows: list[dict[str, Any]] = [
        {
            "size": n % 7 + 0.5,
            "day": f"2024-{n % 12 + 1:02}-{n % 28 + 1:02}",
            "colour": ("red", "blue")[n % 2],
            "label": n % 5 * 1.5,
        }
        for n in range(60)
    ]
    for place, marker in enumerate(MARKERS):
        for step, name in enumerate(COLUMNS):
            rows[4 * place + step][name] = marker
    return rows


def _as_csv(folder: Path) -> Any:
    with (folder / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(_rows())
    return folder / "a.csv"


def _as_jsonl(folder: Path) -> Any:
    rows = [{k: None if v == "" else v for k, v in row.items()} for row in _rows()]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "a.jsonl"


def _as_texts(folder: Path) -> Any:
    rows = [{name: str(value) for name, value in row.items()} for row in _rows()]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
    return folder / "a.parquet"


def _as_frame(folder: Path) -> Any:
    return pd.DataFrame([{k: None if v == "" else v for k, v in r.items()} for r in _rows()])


def _read(table: Table, roles: dict[str, str], **reading: Any) -> list[dict[str, Any]]:
    whole = "answer" not in roles and "text" not in roles
    settings, _ = find_missing(table, roles, whole, Reading(**reading))
    encoder = Encoder("regression", roles, settings=Settings(**settings), whole_rows=whole)
    return [encoder.read(row) for row in table.rows()]


@pytest.mark.parametrize("write", [_as_csv, _as_jsonl, _as_texts, _as_frame])
def test_markers_are_missing_in_every_format(write: Any, tmp_path: Path) -> None:
    table = open_table(write(tmp_path))
    rows = _read(table, {"label": "label"})
    for name in COLUMNS:
        missing = [n for n, row in enumerate(rows) if row[name] is None or row[name] == ""]
        assert missing == [4 * place + COLUMNS.index(name) for place in range(len(MARKERS))], name


def test_each_marker_is_reported(tmp_path: Path) -> None:
    table = open_table(_as_csv(tmp_path))
    _, found = find_missing(table, {"label": "label"}, True, Reading())
    messages = [each.message for each in (*table.findings, *found)]
    assert "'NA' in 2 columns of numbers is read as missing: 'size' 1, 'label' 1." in messages
    assert "'NA' in 2 columns of text is read as missing: 'day' 1, 'colour' 1." in messages
    assert len(messages) == 2 * (len(MARKERS) - 1)


def test_column_of_markers_alone_stays_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,n\nNA,1\nnull,NA\n")
    table = open_table(tmp_path / "a.csv")
    assert table.arrow.to_pydict() == {"text": ["NA", "null"], "n": [1, None]}
    read = _read(table, {"text": "text", "label": "n"})
    assert [row["text"] for row in read] == ["NA", "null"]


@pytest.mark.parametrize(
    ("classes", "missing"),
    [
        (("male", "female", "NA"), "NA"),
        (("yes", "no", "?"), "?"),
        (("EU", "APAC", "LATAM", "NA"), None),
        (("us", "de", "fr", "na"), None),
        (("+", "-"), None),
        (("fur", "skin", "none"), None),
        (("1", "2", "none"), "none"),
    ],
)
def test_marker_is_a_class_where_the_others_look_like_it(
    classes: tuple[str, ...], missing: str | None
) -> None:
    held = [classes[n % len(classes)] for n in range(40)]
    table = open_table([{"input": name, "label": name} for name in held])
    for role in ("input", "label"):
        read = [row[role] for row in _read(table, {"label": "label"})]
        assert {*read} == {None if name == missing else name for name in classes}


def test_words_for_missing_are_values_beside_words() -> None:
    words = ("missing", "Unknown", "None")
    rows = [{"n": str(n), "word": ["red", "blue"][n % 2], "label": n} for n in range(40)]
    for place, word in enumerate(words):
        rows[place] |= {"n": word, "word": word}
    read = _read(open_table(rows), {"label": "label"})[:3]
    assert [(row["n"], row["word"]) for row in read] == [(None, word) for word in words]


def test_own_markers_replace_the_usual_ones() -> None:
    table = open_table([{"x": ("a", "b", "NA", "gone")[n % 4], "label": n} for n in range(40)])
    read = _read(table, {"label": "label"}, missing=("GONE",))
    assert {row["x"] for row in read} == {"a", "b", "NA", None}


def test_answer_that_pandas_wrote_is_missing_and_others_stay() -> None:
    answers = ("nan", "NaN", "null", "NA", "<NA>", "a nan")
    table = open_table([{"prompt": f"p {n}", "answer": answers[n % 6]} for n in range(12)])
    read = _read(table, {"prompt": "prompt", "answer": "answer"})
    assert [row["answer"] for row in read[:6]] == [None, "NaN", "null", "NA", None, "a nan"]


@pytest.mark.parametrize(
    ("text", "order", "date"),
    [
        ("2011-01-02", "ymd", datetime(2011, 1, 2)),
        ("2011-01-02T03:04:05", "ymd", datetime(2011, 1, 2, 3, 4, 5)),
        ("2011/1/2", "ymd", datetime(2011, 1, 2)),
        ("1/2/11", "mdy", datetime(2011, 1, 2)),
        ("1/2/11", "dmy", datetime(2011, 2, 1)),
        ("1/2/1969 12:05 am", "mdy", datetime(1969, 1, 2, 0, 5)),
        ("31-12-99", "dmy", datetime(1999, 12, 31)),
        ("2.1.2011 15:00", "dmy", datetime(2011, 1, 2, 15)),
    ],
)
def test_date_is_read(text: str, order: str, date: datetime) -> None:
    assert read_date(text, order) == date


@pytest.mark.parametrize("text", ["13/13/11", "1.2.11", "1/2", "1/2-11", "3/4/5", "", "2011", "a"])
def test_other_text_is_no_date(text: str) -> None:
    assert [read_date(text, order) for order in ORDERS] == [None] * len(ORDERS)


@pytest.mark.parametrize(("form", "order"), [("{m}/{d}/11", "mdy"), ("{d}/{m}/11", "dmy")])
def test_column_decides_the_order(form: str, order: str) -> None:
    days = [(n % 12 + 1, n % 28 + 1) for n in range(60)]
    rows: list[dict[str, Any]] = [{"when": form.format(m=m, d=d), "y": float(m)} for m, d in days]
    plan = surefit.check(data=rows, model="tiny:mlp", task="regression", columns={"label": "y"})
    parts = plan.job.pipeline.encoder.input.columns
    months = [part for part in parts if part.part == "month" and part.kind == "category"]
    assert [(part.order, part.values) for part in months] == [(order, (*range(1, 13),))]
