"""Preference data: each form is recognised, and its better answers alone can be trained on."""

from __future__ import annotations

from typing import Any

import pytest

import surefit
from faults.columns import PAIRS


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
    assert plan.ledger is not None
    assert plan.ledger.used_rows == len(rows)
    assert plan.columns is not None
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
    assert plan.ledger is not None
    assert plan.job is not None
    assert plan.ledger.dropped_rows == {"bad_answer": 20}
    used = {*plan.job.train.source_row.tolist(), *plan.job.validation.source_row.tolist()}
    assert used == {n for n in range(60) if n % 3 > 0}
    assert plan.columns == {
        "prompt": "prompt",
        "completion": "answer",
        "label": "label",
        "id": None,
    }
