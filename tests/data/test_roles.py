"""Which column plays which role: by name, by type, by choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from surefit.batches.field import Field
from surefit.data.python.rows_to_arrow import open_rows
from surefit.data.roles import extra_fields, get_role, resolve_roles
from surefit.data.table import Table
from surefit.errors import FindingError
from surefit.tasks import TASKS
from surefit.tasks.choose_task import choose_task


def table(**row: Any) -> Table:
    return open_rows([row])


ARRAY = np.zeros((2, 3), np.float32)

CHOICES: dict[str, tuple[dict[str, Any], str, dict[str, str]]] = {
    "prompt and completion": (
        {"prompt": "a", "completion": "b", "id": 1},
        "sft",
        {"prompt": "prompt", "answer": "completion"},
    ),
    "question and answer": (
        {"answer": "b", "question": "a"},
        "sft",
        {"prompt": "question", "answer": "answer"},
    ),
    "capital letters": (
        {"Instruction": "a", "Output": "b"},
        "sft",
        {"prompt": "Instruction", "answer": "Output"},
    ),
    "tokenized rows": (
        {"input_ids": [1], "labels": [1]},
        "sft",
        {"input_ids": "input_ids", "labels": "labels"},
    ),
    "tokenized rows without labels": ({"input_ids": [1]}, "sft", {"input_ids": "input_ids"}),
    "text and label": (
        {"text": "a", "label": "b"},
        "text-classification",
        {"text": "text", "label": "label"},
    ),
    "only one column can be the label": (
        {"sentence": "a", "stars": 3},
        "text-classification",
        {"text": "sentence", "label": "stars"},
    ),
    "features and label": (
        {"X": ARRAY, "y": 1},
        "feature-classification",
        {"features": "X", "label": "y"},
    ),
    "features with a mask": (
        {"features": ARRAY, "label": 1, "mask": [1, 1]},
        "feature-classification",
        {"features": "features", "label": "label", "mask": "mask"},
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_task_and_roles_are_worked_out(name: str) -> None:
    row, task, roles = CHOICES[name]
    chosen, found = choose_task(table(**row), None, {})
    assert (chosen.name, found) == (task, roles)


def test_chosen_columns_come_first() -> None:
    data = table(text="a", other="b", label=1, stars=2)
    task = TASKS["text-classification"]
    _, roles = choose_task(data, task, {"label": "stars", "text": "other"})
    assert roles == {"label": "stars", "text": "other"}


def test_two_columns_that_would_do_are_not_guessed_between() -> None:
    assert (
        resolve_roles(table(one="a", two="b", label=1), ((get_role("text"), get_role("label")),))
        is None
    )


def test_column_of_the_wrong_type_does_not_play_a_role_by_its_name() -> None:
    roles = resolve_roles(
        table(text=3, body="a", label=1), ((get_role("text"), get_role("label")),)
    )
    assert roles == {"text": "body", "label": "label"}


FAULTS: dict[str, tuple[str | None, Mapping[str, str], str]] = {
    "unknown column": (
        None,
        {"label": "nope"},
        "columns.label names the column 'nope'; the data has a, b.",
    ),
    "task without its columns": (
        "sft",
        {},
        "sft needs one of: a column 'input_ids'; a column 'messages'; columns 'prompt' and "
        "'answer'; the columns are a (int64)",
    ),
    "no task at all": (None, {}, "No task could be inferred from the columns a (int64), b"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_role_fault(name: str) -> None:
    task, chosen, message = FAULTS[name]
    with pytest.raises(FindingError) as caught:
        choose_task(table(a=1, b=2), TASKS[task] if task else None, chosen)
    (found,) = caught.value.findings
    assert found.code == "SF202"
    assert message in found.message


def test_numeric_columns_without_a_role_are_offered_to_the_model() -> None:
    data = table(features=ARRAY, label=1, age=3, weight=0.5, path=[1, 2], name="x")
    assert extra_fields(data, {"features", "label"}) == {
        "age": Field((), "int64"),
        "weight": Field((), "float32"),
        "path": Field(("path.0",), "int64"),
    }


@pytest.mark.parametrize(
    ("columns", "roles"),
    [
        (("words", "ner_tags"), ("tokens", "tags")),
        (("tokens", "tags"), ("tokens", "tags")),
        (("src", "tgt"), ("source", "target")),
        (("Img", "label"), ("image", "label")),
    ],
)
def test_names_of_further_roles(columns: tuple[str, str], roles: tuple[str, str]) -> None:
    value = ["x"] if roles[0] == "tokens" else "x"
    found = resolve_roles(
        table(**dict.fromkeys(columns, value)), [[get_role(name) for name in roles]]
    )
    assert found == dict(zip(roles, columns, strict=True))
