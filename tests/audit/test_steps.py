"""surefit's steps are those of a plain loop over rows, for every way of making batches.

A sample of the product runs by default; SUREFIT_AUDIT=full runs all of it, SUREFIT_AUDIT=7 another
sample. `bench/audit_steps.py` writes the figures of the whole product to docs/audit.md.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

from audit import reference
from audit.families import FAMILIES, Family, make_model, make_rows, make_tokenizer
from audit.reference import Loss, Row, Settings, mean_of_means, row_loss, train
from audit.steps import Case, chosen_cases, compare, faults

pytestmark = pytest.mark.slow
BY_NAME = {family.name: family for family in FAMILIES}


@pytest.mark.parametrize("case", chosen_cases(), ids=str)
def test_steps_are_those_of_a_loop_over_rows(case: Case, tmp_path: Path) -> None:
    assert not list(faults(compare(case, tmp_path), case))


def test_the_reference_imports_nothing_of_surefit() -> None:
    for name in ("families.py", "reference.py"):
        tree = ast.parse((Path(reference.__file__).parent / name).read_text(encoding="utf-8"))
        names = [
            alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names
        ]
        names += [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        assert not [each for each in names if each.split(".")[0] in ("surefit", "builders")]


def shifted_label(model: Any, kind: str, row: Row) -> Loss:
    """Labels one place too late."""
    return row_loss(model, kind, {**row, "labels": [*row["labels"][1:], -100]})


def attended_padding(model: Any, kind: str, row: Row) -> Loss:
    """The classes of padded rows without an attention mask."""
    tokenizer = make_tokenizer(kind)
    ids = tokenizer(row["text"], padding="max_length", max_length=47)["input_ids"]
    logits = model(input_ids=torch.tensor([ids])).logits
    return torch.nn.functional.cross_entropy(logits, torch.tensor([row["label"]])), 1


def late_positions(model: Any, kind: str, row: Row) -> Loss:
    """Positions that go on from the row before."""
    ids, labels = row["input_ids"], torch.tensor(row["labels"])
    places = torch.arange(7, 7 + len(ids))[None]
    logits = model(input_ids=torch.tensor([ids]), position_ids=places).logits[0, :-1]
    total = torch.nn.functional.cross_entropy(logits, labels[1:], reduction="sum")
    return total, int((labels[1:] != -100).sum())


def without_window(model: Any, kind: str, row: Row) -> Loss:
    """Attention over the whole row where the model has a window."""
    mask = torch.ones(len(row["input_ids"]), len(row["input_ids"])).tril()[None, None].bool()
    labels = torch.tensor(row["labels"][1:])
    given = {"input_ids": torch.tensor([row["input_ids"]]), "attention_mask": mask}
    total = torch.nn.functional.cross_entropy(
        model(**given).logits[0, :-1], labels, reduction="sum"
    )
    return total, int((labels != -100).sum())


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("llama", "mean of means"),
        ("bart", "mean of means"),
        ("llama", "dropped row"),
        ("bert", "dropped row"),
        ("llama", "not clipped"),
        ("llama", shifted_label),
        ("bert", attended_padding),
        ("roberta", attended_padding),
        ("gpt2", late_positions),
        ("mistral, window 8", without_window),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_wrong_step_is_noticed(
    name: str, fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, case = BY_NAME[name], Case(BY_NAME[name], False, False, True, False)
    wrong = wrong_steps(family, fault, monkeypatch)
    found = compare(case, tmp_path, wrong)
    assert len(list(faults(found, case))) == 2
    assert fault == "not clipped" or found.loss > 1e-5  # AdamW evens out the size of gradients
    assert found.gradient > 1e-5


def wrong_steps(family: Family, fault: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The steps of a reference with a fault."""
    rows, settings, more = make_rows(family.rows), Settings(), {}
    if fault == "mean of means":
        more = {"divide": mean_of_means}
    elif fault == "dropped row":
        rows = rows[1:]
    elif fault == "not clipped":
        settings = Settings(clip=0.0)
    else:
        monkeypatch.setattr(reference, "row_loss", fault)
    return train(make_model(family).double(), family.rows, rows, settings, **more)
