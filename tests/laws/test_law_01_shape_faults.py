"""Law 1: shape faults are found before torch sees them, each as a Finding with a row number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import surefit
from builders import MeanPool, feature_rows


def tokens(row: int | None = None, **changes: Any) -> list[dict[str, Any]]:
    """Tokenized rows, one of them changed."""
    rows: list[dict[str, Any]] = [
        {"input_ids": [5, 6, 7 + i], "labels": [-100, 6, 7 + i]} for i in range(12)
    ]
    if row is not None:
        rows[row] = {**rows[row], **changes}
    return rows


def features(row: int, value: Any) -> list[dict[str, Any]]:
    """Feature rows, one of them changed."""
    rows = feature_rows(30)
    rows[row]["features"] = value
    return rows


NAN = np.zeros((3, 4), np.float32)
NAN[1, 2] = np.nan

FAULTS: dict[str, tuple[str, dict[str, Any], int | None]] = {
    "id beyond the vocabulary": ("SF302", {"data": tokens(7, input_ids=[5, 6, 99_999])}, 7),
    "negative id": ("SF302", {"data": tokens(4, input_ids=[5, -3, 6])}, 4),
    "label beyond the vocabulary": ("SF302", {"data": tokens(9, labels=[-100, 6, 99_999])}, 9),
    "misaligned columns": ("SF201", {"data": tokens(3, labels=[-100, 6])}, 3),
    "nothing to learn from": ("SF401", {"data": [tokens(0, labels=[-100] * 3)[0]] * 4}, 0),
    "fractions as ids": ("SF213", {"data": tokens(2, input_ids=[5.5, 6.0, 7.0])}, 2),
    "another width": ("SF208", {"data": features(8, np.zeros((3, 5), np.float32))}, 8),
    "not a number": ("SF207", {"data": features(5, NAN)}, 5),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_a_finding_with_its_row(name: str) -> None:
    code, options, row = FAULTS[name]
    model = MeanPool() if "features" in options["data"][0] else "tiny:llama"
    if isinstance(model, str):
        options = {**options, "task": "sft"}
    plan = surefit.check(model=model, eval_share=0.0, **options)
    errors = [found for found in plan.findings if found.severity == "error"]
    assert not plan.ok
    assert [found.code for found in errors] == [code]
    assert errors[0].where["row"] == row


class Convolved(torch.nn.Module):
    """A classifier that reads [width, steps] and does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Conv1d(4, 3, 1)

    def forward(self, inputs_embeds: torch.Tensor) -> torch.Tensor:
        return self.body(inputs_embeds).mean(-1)


def test_wrong_axis_order_is_named() -> None:
    rows = [{**row, "features": np.zeros((4, 7), np.float32)} for row in feature_rows(30)]
    plan = surefit.check(model=MeanPool(), data=rows, eval_share=0.0)
    assert plan.ok
    assert "SF422" in {found.code for found in plan.findings}
    ragged = surefit.check(model=Convolved(), data=feature_rows(30), eval_share=0.0)
    assert [found.code for found in ragged.findings if found.severity == "error"] == ["SF308"]


def test_too_few_outputs_are_named() -> None:
    plan = surefit.check(model=MeanPool(num_classes=2), data=feature_rows(30), eval_share=0.0)
    assert [found.code for found in plan.findings if found.severity == "error"] == ["SF303"]


def test_rows_longer_than_the_positions_are_named() -> None:
    rows = tokens(6, input_ids=[5] * 600, labels=[5] * 600)
    plan = surefit.check(
        model="tiny:gpt2", task="sft", data=rows, eval_share=0.0, max_seq_length=700
    )
    errors = [found for found in plan.findings if found.severity == "error"]
    assert [(found.code, found.where["row"]) for found in errors] == [("SF304", 6)]


def test_empty_rows_are_dropped_and_counted() -> None:
    plan = surefit.check(model="tiny:llama", task="sft", data=tokens(1, input_ids=[], labels=[]))
    assert plan.ok
    assert plan.ledger is not None
    assert plan.ledger.dropped_rows == {"empty": 1}
