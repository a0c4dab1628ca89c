"""JSON files: lists wherever they are, columns, nested examples; faults named by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders import write_jsonl
from opening import fault_of, notes_of, rows_of, written
from surefit.data.formats import json_rows
from surefit.findings import Finding

ROWS = [{"text": "één", "label": 1}, {"text": 'q"{[', "label": 2}]

FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a list": (ROWS, {}),
    "columns": ({"text": ["één", 'q"{['], "label": [1, 2]}, {}),
    "pandas columns": ({"text": {"0": "één", "1": 'q"{['}, "label": {"0": 1, "1": 2}}, {}),
    "a list under a key": ({"version": 1.5, "tags": ["x"], "rows": ROWS, "end": None}, {}),
    "a named list": ({"a": [{"no": 1}], "b": {"c": [7], "d": ROWS}}, {"field": "b.d"}),
    "named columns": ({"n": 0, "b": {"text": ["één", 'q"{['], "label": [1, 2]}}, {"field": "b"}),
}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", FORMS)
def test_form(tmp_path: Path, name: str, indent: int | None) -> None:
    content, reading = FORMS[name]
    path = written(tmp_path / "a.json", json.dumps(content, indent=indent))
    assert rows_of(path, **reading) == ROWS


def test_single_object_and_list_of_texts(tmp_path: Path) -> None:
    assert rows_of(written(tmp_path / "a.json", '{"x": 1, "y": "z"}')) == [{"x": 1, "y": "z"}]
    assert rows_of(written(tmp_path / "b.json", '["x", "y"]')) == [{"text": "x"}, {"text": "y"}]


def test_json_lines_under_the_name_of_json(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.json", ROWS)
    assert rows_of(path) == ROWS


@pytest.mark.parametrize("size", [1, 2, 7, 50])
def test_window_of_any_size_gives_the_same_rows(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"n": 12345, "f": -1.5e3, "t": 'é\\"\n' * 9, "b": [True, None]}, {"n": 7}]
    text = json.dumps({"skip": [1, {"data": []}], "data": rows, "more": 12}, indent=1)

    def chunks(*_: Any) -> Any:
        return (text[place : place + size] for place in range(0, len(text), size))

    monkeypatch.setattr(json_rows.TextFile, "chunks", chunks)
    path = written(tmp_path / "a.json", text)
    reader = json_rows._Reader(path, json_rows.Reading())
    found = [item for item in reader.rows() if not isinstance(item, Finding)]
    assert [row for _, row in found] == rows
    assert [line for line, _ in found] == [
        1 + text[: text.index(k)].count("\n") for k in ('{\n   "n": 1', '{\n   "n": 7')
    ]


FAULTS = {
    "cut short": ('[{"x": 1},\n{"x": ', "SF102", 2),
    "cut within a text": ('[{"x": 1},\n{"x": "ab', "SF102", 2),
    "an object cut short": ('{"a": [1],\n"b"', "SF102", 2),
    "a comma missing": ('[{"x": 1}\n{"x": 2}]', "SF102", 2),
    "a bare word": ('[{"x": 1},\n{"x": oops, "y": "' + "z" * 99 + '"}]', "SF102", 2),
    "a number among objects": ('[{"x": 1},\n3]', "SF102", 2),
    "a list among objects": ('[{"x": 1},\n[3]]', "SF102", 2),
    "more after the end": ('[{"x": 1}]\n]', "SF102", 2),
    "no JSON at all": ("this is text", "SF102", 1),
    "mixed types": ('[{"x": 1},\n{"x": "y"}]', "SF103", 2),
    "nested beyond measure": ('[{"x":\n' + "[" * 100_000, "SF102", 1),
    "two lists of objects": ('{"a": [{"x": 1}], "b": [{"x": 1}]}', "SF115", None),
    "no list": ('{"a": {"b": 1}, "c": 2}', "SF115", None),
    "columns of two lengths": ('{"a": [1, 2], "b": [1]}', "SF106", None),
    "only a number": ("3", "SF102", 1),
    "an empty list": ("[]", "SF101", None),
    "nothing": ("", "SF101", None),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named_by_its_place(tmp_path: Path, name: str) -> None:
    text, code, line = FAULTS[name]
    path = written(tmp_path / "a.json", text)
    found = fault_of(path)
    assert (found.code, found.where.get("line")) == (code, line)
    assert found.where["file"] == str(path)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("rows", "no 'rows' among data, n"),
        ("n.x", "n is not an object"),
        ("n", "expected a list of objects, found a int"),
    ],
)
def test_field_that_is_not_there(tmp_path: Path, field: str, message: str) -> None:
    path = written(tmp_path / "a.json", '{"data": [], "n": 1}')
    found = fault_of(path, field=field)
    assert found.code == "SF115"
    assert message in found.message


SQUAD = {
    "title": "T",
    "paragraphs": [
        {
            "context": "C",
            "qas": [
                {"id": "1", "question": "Q?", "answers": [{"text": "A", "answer_start": 3}]},
                {"id": "2", "question": "R?", "answers": [], "is_impossible": True},
            ],
        }
    ],
}
FLAT = [
    {"id": "1", "title": "T", "context": "C", "question": "Q?", "answer": "A", "answers": ["A"]},
    {"id": "2", "title": "T", "context": "C", "question": "R?", "answer": None, "answers": []},
]


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_questions_are_flattened(tmp_path: Path, ending: str) -> None:
    content = SQUAD if ending == "jsonl" else {"version": "1", "data": [SQUAD]}
    path = written(tmp_path / f"a.{ending}", json.dumps(content))
    rows = rows_of(path)
    assert [{name: row[name] for name in FLAT[0]} for row in rows] == FLAT
    assert rows[0]["answer_start"].tolist() == [3]
    assert rows[1]["is_impossible"] is True
    assert any("each question becomes a row" in message for _, message in notes_of(path))


def test_answers_of_a_flat_question(tmp_path: Path) -> None:
    answers = {"text": ["A", "B"], "answer_start": [3, 4]}
    path = write_jsonl(tmp_path / "a.jsonl", [{"question": "Q?", "answers": answers}])
    (row,) = rows_of(path)
    assert (row["answer"], row["answers"]) == ("A", ["A", "B"])
    assert row["references"] == ["A", "B"]


def test_instances_are_rows(tmp_path: Path) -> None:
    tasks = [
        {"id": 1, "instruction": "add", "instances": [{"input": "1 1", "output": "2"}] * 2},
        {"id": 2, "instruction": "rest", "instances": []},
    ]
    path = write_jsonl(tmp_path / "a.jsonl", tasks)
    assert rows_of(path) == [
        {"id": 1, "instruction": "add", "input": "1 1", "output": "2"},
        {"id": 1, "instruction": "add", "input": "1 1", "output": "2"},
        {"id": 2, "instruction": "rest", "input": None, "output": None},
    ]
    ((code, message),) = notes_of(path)
    assert (code, "id, instruction, input, output" in message) == ("", True)
