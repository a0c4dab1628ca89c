"""Reasons for dropped rows: a closed set of keys, and words for people."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import surefit
from builders import feature_rows, sentiment_rows
from surefit.encode.drop_reasons import DropReason, describe_counts, describe_rows, fix_for
from surefit.encode.encoded_row import SkipRowError

PACKAGE = Path(surefit.__file__).parent


def test_the_package_drops_rows_for_known_reasons_only() -> None:
    named = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "SkipRowError":
                named.append((path.name, ast.unparse(node.args[0])))
    assert len(named) > 20
    known = {f"DropReason.{reason.name}" for reason in DropReason}
    unknown = {pair for pair in named if pair[1] not in known}
    assert unknown == {
        ("row_encoder.py", "reason_without_targets(self.fields)"),
        ("sft.py", "skip.reason"),  # of refuse_overlong, with a remark
    }


@pytest.mark.parametrize("reason", DropReason)
def test_every_reason_is_said_in_words_with_a_fix(reason: DropReason) -> None:
    one, many = describe_counts({reason.value: 1}), describe_counts({reason.value: 1200})
    assert one == f"1 row {reason.singular}"
    assert many == f"1,200 rows {reason.plural}"
    for text in (one, many, describe_rows(reason, [3])):
        assert "nothing_to_learn" not in text
        assert "_" not in text.replace("max_seq_length", "")
    assert reason.fix.endswith(".")
    assert "Nothing to do" not in reason.fix


def test_reason_of_a_users_own_task_is_quoted() -> None:
    counts = {"too short": 3, "empty": 1}
    assert describe_counts(counts) == "3 rows: too short, 1 row is empty"
    assert describe_rows("too short", [2, 5]) == "rows 2, 5: too short"
    assert fix_for(counts) == DropReason.EMPTY.fix
    assert fix_for(["too short"]) == ""


def found(plan: Any, code: str) -> Any:
    (finding,) = (finding for finding in plan.findings if finding.code == code)
    return finding


def test_mask_that_is_all_zero_is_not_called_empty() -> None:
    rows = [{**row, "mask": np.ones(len(row["features"]), np.int64)} for row in feature_rows(40)]
    rows[5]["mask"] = np.zeros(len(rows[5]["features"]), np.int64)
    plan = surefit.check(data=rows, model="tiny:bert")
    assert plan.ledger is not None
    assert plan.ledger.dropped_rows == {"mask_all_zero": 1}
    finding = found(plan, "SF203")
    assert finding.message == (
        "1 of 40 rows is dropped: 1 row has a mask that is all zero. "
        "For example, row 5 has a mask that is all zero."
    )
    assert finding.fix == "Set the mask to 1 at the positions to use, or delete the rows."


def test_lost_rows_have_a_fix_for_each_reason() -> None:
    rows: list[Any] = sentiment_rows(60)
    rows[4]["text"], rows[11]["label"] = "", None
    finding = found(surefit.check(data=rows, model="tiny:bert"), "SF203")
    assert finding.message == (
        "2 of 60 rows are dropped: 1 row is empty, 1 row has no label. "
        "For example, row 4 is empty; row 11 has no label."
    )
    assert finding.fix == f"{DropReason.EMPTY.fix} {DropReason.NO_LABEL.fix}"


def test_own_task_may_give_its_own_reason_or_have_no_target() -> None:
    from surefit import Field, TaskSpec
    from surefit.tasks.task_spec import Head

    def encode(row: Any, encoder: Any) -> Any:
        if row["text"].startswith("short"):
            raise SkipRowError("shorter than a sentence")
        ids = encoder.tokenizer(row["text"])["input_ids"]
        return {"input_ids": ids, "labels": float(row["label"])}

    def loss(outputs: Any, batch: Any) -> Any:
        wrong = outputs.logits[:, 0] - batch["labels"]
        return wrong.square().sum(), len(wrong)

    task = TaskSpec(
        name="scores",
        fields={"input_ids": Field(("time",), "int64"), "labels": Field()},
        encode=encode,
        loss=loss,
        needs=(("text", "label"),),
        head=Head("AutoModelForSequenceClassification", config=lambda _: {"num_labels": 1}),
        count_targets=lambda columns: int(columns["labels"] >= 0),
    )
    texts = ["short one", "unscored", *(f"a sentence of words {n}" for n in range(40))]
    rows = [{"text": text, "label": -1.0 if n == 1 else 0.5} for n, text in enumerate(texts)]
    plan = surefit.check(data=rows, model="tiny:bert", task=task)
    assert plan.ledger is not None
    assert plan.ledger.dropped_rows == {"no_target": 1, "shorter than a sentence": 1}
    message = (
        "2 of 42 rows are dropped: 1 row has no target, 1 row: shorter than a sentence. "
        "For example, row 1 has no target; row 0: shorter than a sentence."
    )
    assert found(plan, "SF203").message == message
