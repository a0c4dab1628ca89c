"""Files of different forms are read each by its own form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import surefit
from faults.columns import CHATS, OTHERS, asked
from surefit.data.python.rows_to_arrow import open_rows
from surefit.errors import FindingError
from surefit.tasks import TASKS
from surefit.tasks.source_forms import read_as_known


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def learned(plan: Any) -> list[str]:
    """What has labels in each row of the data, in order."""
    tokenizer = plan.job.pipeline.encoder.tokenizer
    texts = {}
    for store in (plan.job.train, plan.job.validation):
        for place, number in enumerate(store.source_row.tolist()):
            labels = store.row(place)["labels"]
            texts[number] = tokenizer.decode(labels[labels != -100], skip_special_tokens=True)
    return [texts[number].strip() for number in sorted(texts)]


def test_three_forms_in_one_data_set(tmp_path: Path) -> None:
    files = [
        written(tmp_path / "a.jsonl", OTHERS),
        written(tmp_path / "b.jsonl", asked()),
        written(tmp_path / "c.jsonl", CHATS),
    ]
    plan = surefit.check(data=files, model="tiny:llama")
    assert plan.ok
    assert plan.ledger is not None
    assert plan.ledger.used_rows == len(OTHERS) + len(asked()) + len(CHATS)
    assert plan.ledger.dropped_rows == {}
    assert plan.columns == {
        "instruction": "prompt",
        "input": "input",
        "output": "answer",
        "prompt": "prompt",
        "completion": "answer",
        "conversations": "messages",
    }
    expected = [row["output"] for row in OTHERS] + [row["completion"] for row in asked()]
    assert learned(plan) == expected + [row["conversations"][1]["value"] for row in CHATS]
    assert {f.code for f in plan.findings if f.severity == "warning"} == set()


def test_a_run_of_two_forms_evaluates_and_predicts_either(tmp_path: Path) -> None:
    train, other = written(tmp_path / "a.jsonl", asked()), written(tmp_path / "b.jsonl", CHATS)
    run = surefit.train(
        data=train, eval_data=other, model="tiny:llama", max_steps=1, output=str(tmp_path / "run")
    )
    assert run.metrics["loss"] > 0
    for data in (train, other):
        assert surefit.evaluate(run, data)["loss"] > 0
        assert len(surefit.predict(run, data)) == 24
    with pytest.raises(FindingError, match="has no column"):
        surefit.evaluate(run, [{"completion": "a"}])


def test_rows_of_two_forms_in_one_file_are_learned(tmp_path: Path) -> None:
    rows = [row for pair in zip(asked(), CHATS, strict=True) for row in pair]
    plan = surefit.check(data=written(tmp_path / "a.jsonl", rows), model="tiny:llama")
    assert plan.ok
    assert plan.ledger is not None
    assert plan.ledger.used_rows == len(rows)
    expected = [
        answer
        for row, chat in zip(asked(), CHATS, strict=True)
        for answer in (row["completion"], chat["conversations"][1]["value"])
    ]
    assert learned(plan) == expected


def test_a_run_of_two_forms_is_resumed(tmp_path: Path) -> None:
    rows = [row for pair in zip(asked(), CHATS, strict=True) for row in pair]
    for number, data in enumerate(
        [
            [written(tmp_path / "a.jsonl", asked()), written(tmp_path / "b.jsonl", CHATS)],
            written(tmp_path / "c.jsonl", rows),
        ]
    ):
        path = str(tmp_path / f"run-{number}")
        surefit.train(data=data, model="tiny:llama", max_steps=1, output=path, quiet=True)
        run = surefit.train(resume=path, max_steps=2, quiet=True)
        assert run.saved_step == 2


def known(rows: list[dict[str, Any]], task: str, **roles: str) -> tuple[Any, dict[str, str]]:
    """The first row and the roles, as a run reads a table that was trained with `roles`."""
    table, found, _ = read_as_known(open_rows(rows), TASKS[task], roles)
    return table.row(0), found


def test_a_table_under_other_names_is_evaluated() -> None:
    roles = {"text": "body_of_it", "label": "kind"}
    row, found = known([{"sentence": "a b", "label": 1}], "text-classification", **roles)
    assert row == {"body_of_it": "a b", "kind": 1}
    assert found == roles


def test_a_table_with_the_known_columns_stays() -> None:
    table = open_rows([{"text": "a", "label": 1, "sentence": "b"}])
    read, found, notes = read_as_known(
        table, TASKS["text-classification"], {"text": "text", "label": "label"}
    )
    assert read is table
    assert (found, notes) == ({"text": "text", "label": "label"}, [])
