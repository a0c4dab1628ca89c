"""Law 12: nothing of meaning is dropped or misread in silence; columns, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import surefit
from faults.columns import PAIRS, asked
from surefit.data.open_data import open_table
from tar_files import tar_of

TABLE = [
    {"note": f"no. {n}", "size": n * 13 % 29, "kind": "ab"[n % 2], "price": n * 3.5 % 17}
    for n in range(60)
]
SETS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "prompts": (
        asked(source=lambda n: f"site {n % 2}", stars=lambda n: n % 5),
        {"model": "tiny:llama", "ignore": ["stars"]},
    ),
    "tables": (TABLE, {"model": "tiny:mlp", "task": "regression", "columns": {"label": "price"}}),
}


def encoded(plan: Any) -> list[Any]:
    """Everything that the model gets of the training rows."""
    store = plan.job.train
    return [store.values(name).tolist() for name in store.fields]


def changed(value: Any) -> Any:
    return f"{value} moon" if isinstance(value, str) else value + 1


def check(rows: list[dict[str, Any]], options: dict[str, Any]) -> Any:
    plan = surefit.check(data=rows, eval_share=0, **options)
    assert plan.ok, plan.findings
    return plan


@pytest.mark.parametrize("name", SETS)
def test_a_column_is_read_exactly_if_it_has_a_role(name: str) -> None:
    rows, options = SETS[name]
    plan = check(rows, options)
    assert list(plan.columns) == [*rows[0]]
    assert plan.as_dict()["columns"] == plan.columns
    assert None in plan.columns.values()
    before = encoded(plan)
    for column, role in plan.columns.items():
        other = [{**rows[0], column: changed(rows[0][column])}, *rows[1:]]
        assert (encoded(check(other, options)) != before) == (role is not None), column


def test_columns_of_the_validation_data_are_accounted_for() -> None:
    shown = [{"prompt": f"Count to {n}", "completion": "1 2", "note": "x"} for n in range(3)]
    plan = surefit.check(data=asked(), eval_data=shown, model="tiny:llama")
    assert plan.columns == {"prompt": "prompt", "completion": "answer", "note": None}


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (PAIRS["standard"][1], "SF130"),
        (PAIRS["ranked conversations"][1], "SF130"),
        (asked(label=lambda n: n % 2 == 0), "SF131"),
        (asked(score=lambda n: n % 5), "SF132"),
        ([{"prompt": f"Count to {n}"} for n in range(20)], "SF133"),
    ],
)
def test_what_would_be_misread_is_refused(rows: list[dict[str, Any]], code: str) -> None:
    plan = surefit.check(data=rows, model="tiny:llama")
    assert not plan.ok
    assert code in [found.code for found in plan.findings if found.severity == "error"]


def test_members_of_a_tar_file_that_are_not_read_are_named(tmp_path: Path) -> None:
    members = [("0.txt", b"text"), ("0.mp4", b"film"), ("0.pkl", b"pickle"), ("note", b"about")]
    (tmp_path / "a.tar").write_bytes(tar_of(members))
    said = " ".join(found.message for found in open_table(tmp_path / "a.tar").findings)
    assert all(name in said for name, _ in members[1:])


FEATURES = np.random.default_rng(0).normal(size=(40, 5, 4)).astype(np.float32)
CLASSES = np.arange(40) % 2
TARGETS = {
    "class": CLASSES,
    "number": CLASSES + 0.5,
    "classes of steps": (FEATURES[:, :, 0] > 0).astype(int).tolist(),
}


class Copies(nn.Module):
    """Adds the target to its outputs, and so reaches a perfect score in training."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.head = kind, nn.Linear(4, 1 if kind == "number" else 2)

    def forward(self, inputs_embeds: Any, attention_mask: Any, labels: Any = None) -> Any:
        steps = self.kind == "classes of steps"
        made = self.head(inputs_embeds if steps else inputs_embeds.mean(1))
        if labels is None:
            return made
        copied = torch.eye(2)[labels] if self.kind != "number" else labels[:, None]
        return made + 100 * copied


def rows_of(kind: str) -> list[dict[str, Any]]:
    pairs = zip(FEATURES.tolist(), TARGETS[kind], strict=True)
    return [{"features": steps, "label": target} for steps, target in pairs]


@pytest.mark.parametrize("kind", TARGETS)
def test_no_logit_moves_with_a_target_in_the_training_call(kind: str) -> None:
    plan = surefit.check(data=rows_of(kind), model=Copies(kind))
    errors = [found for found in plan.findings if found.severity == "error"]
    assert [found.code for found in errors] == ["SF751"]
    assert "'labels'" in errors[0].message


def test_metrics_use_the_outputs_of_the_call_that_prediction_makes(tmp_path: Path) -> None:
    options = {"max_steps": 1, "accept": ["SF751"], "output": str(tmp_path / "run")}
    module, rows = Copies("class"), rows_of("class")
    run = surefit.train(data=rows, model=module, **options)
    predicted = surefit.predict(run, rows, model=module)
    right = [row["prediction"] == wanted for row, wanted in zip(predicted, CLASSES, strict=True)]
    assert surefit.evaluate(run, rows, model=module)["accuracy"] == np.mean(right) < 0.9
