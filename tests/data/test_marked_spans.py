"""Places in a text that an annotation tool marked are read as tagged words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import surefit
from builders import write_jsonl
from surefit.data.open_data import open_table

TEXT = "Ann-Marie Lee saw Rome."
MARKS = [(0, 13, "PER"), (18, 22, "LOC")]
FORMS: dict[str, Any] = {
    "objects": [{"start": a, "end": b, "label": label} for a, b, label in MARKS],
    "offsets": [
        {"id": n, "start_offset": a, "end_offset": b, "entity_type": label, "score": 0.5}
        for n, (a, b, label) in enumerate(MARKS)
    ],
    "triples": [[*mark] for mark in MARKS],
}
TAGS = ["B-PER", "I-PER", "I-PER", "I-PER", "O", "B-LOC", "O"]


def rows_with(marks: Any, text: str = TEXT) -> list[dict[str, Any]]:
    return [{"text": text, "entities": marks}, {"text": "Nobody came.", "entities": []}] * 10


@pytest.mark.parametrize("form", FORMS)
def test_marked_places_become_tags(tmp_path: Path, form: str) -> None:
    table = open_table(write_jsonl(tmp_path / "rows.jsonl", rows_with(FORMS[form])))
    row = table.row(0)
    assert row["tokens"] == ["Ann", "-", "Marie", "Lee", "saw", "Rome", "."]
    assert row["tags"] == TAGS
    assert table.row(1)["tags"] == ["O", "O", "O"]
    plan = surefit.check(data=str(tmp_path / "rows.jsonl"), model="tiny:bert", max_steps=1)
    assert plan.task.name == "token-classification"


def test_marks_that_fit_no_words_are_counted(tmp_path: Path) -> None:
    marks = [*FORMS["objects"], {"start": 1, "end": 5, "label": "X"}]  # inside the first one
    marks.append({"start": 15, "end": 17, "label": "CUT"})  # "aw" of "saw"
    table = open_table(write_jsonl(tmp_path / "rows.jsonl", rows_with(marks)))
    assert table.row(0)["tags"] == [*TAGS[:4], "B-CUT", *TAGS[5:]]
    assert any("20 of 40 marks overlap others" in found.message for found in table.findings)


@pytest.mark.parametrize(
    "marks",
    [
        [{"start": 0, "end": 900, "label": "PER"}],  # beyond the text
        [{"start": 3, "end": 3, "label": "PER"}],
        [{"page": 3, "line": 4, "label": "PER"}],
        [{"start": 0.5, "end": 2.5, "label": "said"}],  # seconds
    ],
)
def test_other_lists_of_objects_are_left_alone(tmp_path: Path, marks: Any) -> None:
    table = open_table(write_jsonl(tmp_path / "rows.jsonl", rows_with(marks)))
    assert "tags" not in table.columns


def test_a_text_to_predict_for_is_parted_into_words(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", rows_with(FORMS["objects"]))
    options: dict[str, Any] = {"max_steps": 2, "output": str(tmp_path / "run")}
    run = surefit.train(data=str(data), model="tiny:bert", **options)
    assert len(surefit.predict(run, [{"text": TEXT}])[0]["prediction"]) == len(TAGS)
