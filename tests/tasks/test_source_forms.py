"""Files of different forms are read each by its own form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import surefit
from faults.columns import CHATS, OTHERS, asked
from surefit.errors import FindingError


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
