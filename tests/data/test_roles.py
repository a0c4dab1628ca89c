"""Which column plays which role: by name, by type, by choice; and the forms of preference data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import surefit
from faults.columns import PAIRS
from surefit.batches.field import Field
from surefit.data.python.rows_to_arrow import open_rows
from surefit.data.roles import extra_fields, get_role, resolve_roles
from surefit.data.table import Table
from surefit.tasks import TASKS
from surefit.tasks.choose_task import choose_task


def table(**row: Any) -> Table:
    return open_rows([row])


ARRAY = np.zeros((2, 3), np.float32)


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


def test_numeric_columns_without_a_role_are_offered_to_the_model() -> None:
    data = table(features=ARRAY, label=1, age=3, weight=0.5, path=[1, 2], name="x")
    assert extra_fields(data, {"features", "label"}) == {
        "age": Field((), "int64"),
        "weight": Field((), "float32"),
        "path": Field(("path.0",), "int64"),
    }


def text_of(plan: Any, place: int) -> tuple[str, str]:
    """What a training row says, and what of it has labels."""
    row = plan.job.train.row(place)
    tokenizer = plan.job.pipeline.encoder.tokenizer
    labels = [label for label in row["labels"].tolist() if label != -100]
    return tokenizer.decode(row["input_ids"]), tokenizer.decode(labels, skip_special_tokens=True)


@pytest.mark.parametrize("form", PAIRS)
def test_the_better_answers_are_learned_and_the_prompts_are_not(form: str) -> None:
    column, rows = PAIRS[form]
    plan = surefit.check(data=rows, model="tiny:llama", task="sft", columns={"answer": column})
    assert plan.ok
    assert plan.ledger.used_rows == len(rows)
    assert plan.columns[column] in ("answer", "messages")
    number = int(plan.job.train.source_row[0])  # type: ignore[union-attr]
    whole, learned = text_of(plan, 0)
    assert f"What is {number} and {number}?" in whole
    assert learned.strip() == f"It is {2 * number}."
    assert "No." not in whole


def test_rejected_rows_are_dropped_and_counted() -> None:
    rows = [
        {"prompt": f"Say {n}", "completion": f"{n}.", "label": n % 3 > 0, "id": n}
        for n in range(60)
    ]
    refused = surefit.check(data=rows, model="tiny:llama")
    assert not refused.ok
    plan = surefit.check(data=rows, model="tiny:llama", accept=["SF131"])
    assert plan.ok
    assert plan.ledger.dropped_rows == {"bad_answer": 20}
    used = {*plan.job.train.source_row.tolist(), *plan.job.validation.source_row.tolist()}
    assert used == {n for n in range(60) if n % 3 > 0}
    assert plan.columns == {
        "prompt": "prompt",
        "completion": "answer",
        "label": "label",
        "id": None,
    }
