"""Law 1: shape faults are found before torch sees them, each as a Finding with a row number."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import surefit
from builders import feature_rows
from faults.case import run_quickly
from faults.every import FAULTS

NAMED = {case.name: case for cases in FAULTS.values() for case in cases}
AT_A_ROW = (
    "id beyond the vocabulary",
    "label that is negative and not -100",
    "labels longer than ids",
    "every label masked",
    "fractions as ids",
    "row of another width",
    "features that are not a number",
    "longer than the positions",
    "too few outputs",
)


@pytest.mark.parametrize("name", AT_A_ROW)
def test_fault_is_a_finding_with_its_row(name: str, tmp_path: Path) -> None:
    """The codes and the numbers of the rows are those that tests/faults states."""
    case = NAMED[name]
    assert case.row is not None
    assert run_quickly(case, tmp_path).complaint(case) == ""


class Convolved(torch.nn.Module):
    """A classifier that reads [width, steps] and does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Conv1d(4, 3, 1)

    def forward(self, inputs_embeds: torch.Tensor) -> torch.Tensor:
        return self.body(inputs_embeds).mean(-1)


def test_wrong_axis_order_is_named() -> None:
    ragged = surefit.check(model=Convolved(), data=feature_rows(30), eval_share=0.0)
    assert [found.code for found in ragged.findings if found.severity == "error"] == ["SF305"]


def test_empty_rows_are_dropped_and_counted() -> None:
    rows = [{"input_ids": [5, 6, 7 + n], "labels": [-100, 6, 7 + n]} for n in range(12)]
    rows[1] = {"input_ids": [], "labels": []}
    plan = surefit.check(model="tiny:llama", task="sft", data=rows)
    assert plan.ok
    assert plan.ledger is not None
    assert plan.ledger.dropped_rows == {"empty": 1}
