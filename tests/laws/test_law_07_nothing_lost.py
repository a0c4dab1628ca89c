"""Law 7: nothing is lost in silence, nothing is repeated in silence."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import surefit
from builders import echo_rows

TOKENS = st.lists(st.integers(3, 60), max_size=12)
ROW = st.fixed_dictionaries({"input_ids": TOKENS, "labels": st.just([])})


def labelled(row: dict[str, Any], masked: bool) -> dict[str, Any]:
    ids = row["input_ids"]
    return {"input_ids": ids, "labels": [-100] * len(ids) if masked else ids}


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(ROW, st.booleans()), min_size=1, max_size=30))
def test_every_row_is_used_or_counted(drawn: list[tuple[dict[str, Any], bool]]) -> None:
    rows = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}] * 3
    rows += [labelled(row, masked) for row, masked in drawn]
    plan = surefit.check(data=rows, model="tiny:llama", task="sft", max_dropped_share=1.0)
    assert plan.ok
    assert plan.ledger is not None
    assert plan.job is not None
    ledger, job = plan.ledger, plan.job
    assert ledger.rows == len(rows)
    assert ledger.rows == ledger.used_rows + sum(ledger.dropped_rows.values())
    assert ledger.used_rows == ledger.train_rows + ledger.eval_rows
    used = [*job.train.source_row.tolist(), *job.validation.source_row.tolist()]
    assert len(used) == len(set(used)) == ledger.used_rows
    learnable = [any(label != -100 for label in row["labels"][1:]) for row in rows]
    assert sorted(used) == [place for place, kept in enumerate(learnable) if kept]
    assert ledger.tokens == sum(len(rows[row]["input_ids"]) for row in job.train.source_row)


def test_truncation_and_dropping_are_counted() -> None:
    rows = [*echo_rows(30), {"prompt": "red " * 300, "completion": "blue"}]
    rows += [{"prompt": "red", "completion": "blue " * 300}, {"prompt": " ", "completion": "x"}]
    plan = surefit.check(data=rows, model="tiny:llama", max_seq_length=40)
    assert plan.ledger is not None
    assert plan.ledger.truncated_rows == 1
    assert plan.ledger.dropped_rows == {"empty": 1, "overlong": 1}
    assert {"SF270", "SF279"} <= {found.code for found in plan.findings}
    [lost] = [found.message for found in plan.findings if found.code == "SF215"]
    assert "1 of 31 rows is longer" in lost
    assert "are lost" in lost


def test_views_are_counted_and_rows_to_evaluate_on_have_none() -> None:
    rows = [*echo_rows(40), {"prompt": "red", "completion": " "}]
    plan = surefit.check(data=rows, model="tiny:llama", augmentation_factor=3)
    assert plan.ledger is not None
    assert plan.job is not None
    ledger, train, held = plan.ledger, plan.job.train, plan.job.validation
    assert ledger.rows == len(rows) == ledger.used_rows + sum(ledger.dropped_rows.values())
    assert ledger.used_rows == ledger.train_rows + ledger.eval_rows
    assert ledger.train_views == len(train) == 3 * ledger.train_rows
    assert len(held) == len(set(held.source_row.tolist())) == ledger.eval_rows
    assert not set(train.source_row.tolist()) & set(held.source_row.tolist())
    seen = [
        row
        for step in range(plan.job.batches.steps_per_epoch)
        for row in plan.job.batches.step_rows(0, step).tolist()
    ]
    assert sorted(seen) == list(range(len(train)))
