"""What is the input and what the label, where names and types alone do not say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

import surefit
from surefit.data.open_data import open_table
from surefit.data.table import Source, Table
from surefit.plan.split_data import row_parts
from surefit.tasks.choose_task import find_task
from surefit.user_code import NamedCode

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 5)).astype("float32")
SIDES = np.array(["low", "high"])[(X[:, 0] > 0).astype(int)]
PATIENTS = [f"p{row // 6}" for row in range(60)]
KINDS = ["cat", "dog"] * 30


def mlp(size: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, size))


class Towers(nn.Module):
    """Two inputs of their own widths."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(2, 2)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        return self.left(user) + self.right(item)


class Photo(nn.Module):
    """An image, and numbers beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.read = nn.Conv2d(3, 2, 3), nn.Linear(2, 2)

    def forward(self, photo: Any, age: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        numbers = torch.stack([age.float(), weight.float()], dim=-1)
        return self.look(photo).mean((2, 3)) + self.read(numbers)


def roles_of(**options: Any) -> tuple[str, dict[str, str]]:
    plan = surefit.check(**options)
    assert plan.ok, [found.message for found in plan.findings if found.severity == "error"]
    return plan.task.name, dict(plan.roles)


def test_inputs_and_labels_as_two_arrays() -> None:
    names = {"features": "features", "label": "label"}
    assert roles_of(data=(X, SIDES), model=mlp()) == ("feature-classification", names)
    both = torch.from_numpy(X), torch.from_numpy(X[:, 0])
    assert roles_of(data=both, model=mlp(1)) == ("regression", names)
    (found,) = surefit.check(data=(X, SIDES[:50]), model=mlp()).findings
    assert "features has 60, label has 50" in found.message
    assert open_table((X[:7], X[:9])).num_rows == 2  # sequences of one width are rows


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("loads", [True, False])
def test_inputs_in_a_tuple_or_dict_of_their_own(named: bool, loads: bool) -> None:
    def item(row: Any, label: int) -> Any:
        inputs = (torch.from_numpy(row[:3]), torch.from_numpy(row[3:]))
        return (dict(zip(("user", "item"), inputs, strict=True)) if named else inputs), label

    rows: Any = [item(row, int(row[0] > 0)) for row in X]
    task, roles = roles_of(data=DataLoader(rows, batch_size=7) if loads else rows, model=Towers())
    assert (task, roles["label"]) == ("feature-classification", "label")


def test_which_columns_are_no_labels_and_which_the_module_reads() -> None:
    rows: Any = {"signal": X, "side": SIDES, "patient": PATIENTS, "id": np.arange(60)}
    found = roles_of(data=rows, model=mlp(), split={"by": "patient"})
    assert found == ("feature-classification", {"features": "signal", "label": "side"})
    rows = [
        {"photo": RANDOM.integers(0, 255, (8, 8, 3), "uint8"), "age": 3.5, "weight": n, "pet": pet}
        for n, pet in enumerate(KINDS)
    ]
    found = roles_of(data=rows, model=Photo())  # arguments of forward
    assert found == ("image-classification", {"image": "photo", "label": "pet"})
    several = (X[:, :3] > 0).astype("int64")
    found = roles_of(data={"marks": several, "signal": X}, model=mlp(3))
    assert found == ("feature-classification", {"features": "signal", "label": "marks"})
    numbers = {"signal": X, "goal": X[:, :3]}
    assert roles_of(data=numbers, model=mlp(3), columns={"label": "goal"})[0] == "regression"


def test_a_column_of_paths_is_known_by_its_files(tmp_path: Path) -> None:
    for number in range(20):
        pixels = RANDOM.integers(0, 255, (8, 8, 3), "uint8")
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    lines = [f"{number}.png,{KINDS[number]}" for number in range(20)]
    (tmp_path / "list.csv").write_text("\n".join(["scan_file,animal", *lines]))
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    wanted = {"image": "scan_file", "label": "animal"}
    assert roles_of(data=str(tmp_path / "list.csv"), model=model) == (
        *("image-classification", wanted),
    )
    rows = [
        {
            "remark": f"the {pet} number {n} is here",
            "scan_file": str(tmp_path / f"{n}.png"),
            "y": pet,
        }
        for n, pet in enumerate(KINDS[:20])
    ]
    task, roles = roles_of(data=rows, model="tiny:bert")
    assert (task, roles["text"]) == ("text-classification", "remark")


def test_a_model_for_tables_reads_texts_as_a_column_of_theirs() -> None:
    rows = [
        {"note": f"a remark about {n}", "size": n / 7, "day": n % 5, "sales": n * 0.3}
        for n in range(40)
    ]
    chosen: dict[str, Any] = {"data": rows, "task": "regression", "columns": {"label": "sales"}}
    assert roles_of(model="tiny:mlp", **chosen)[1] == {"label": "sales"}
    assert roles_of(model="tiny:bert", **chosen)[1] == {"text": "note", "label": "sales"}


def test_advice_for_arrays_is_for_arrays() -> None:
    pixels = RANDOM.integers(0, 2, (20, 9, 9), "uint8")
    two = surefit.check(data={"scan": pixels, "organ": pixels}, model=nn.Conv2d(1, 2, 3, padding=1))
    assert "--task image-segmentation --set columns.image=scan" in two.findings[0].fix
    states = {"trace": RANDOM.normal(size=(20, 9, 2)), "phase": RANDOM.integers(0, 3, (20, 9))}
    steps = surefit.check(data=states, model=nn.Conv1d(2, 3, 3, padding=1))
    assert "--set columns.features=trace --set columns.label=phase" in steps.findings[0].fix
    for found in (*two.findings, *steps.findings):
        assert "tabular" not in found.fix


def test_a_context_that_is_no_text_may_be_left_out() -> None:
    rows = [
        {"question": f"Who is {n}?", "answer": "Ann", "context": {"titles": ["A"], "lines": ["B"]}}
        for n in range(20)
    ]
    found = surefit.check(data=rows, model="tiny:llama").findings[-1]
    assert found.fix == "Write it as one text, or leave it out: --set ignore=context."
    assert surefit.check(data=rows, model="tiny:llama", ignore=["context"]).ok


@pytest.mark.parametrize(
    ("values", "is_input"),
    [
        (["a-1", "a-2", "a-3"], False),
        ([7, 8, 9], False),
        (["01.02.2024", "02.02.2024", "03.02.2024"], True),
        (["2024-02-01 10:00", "2024-02-01 11:00", "2024-02-01 12:00"], True),
    ],
)
def test_ids_are_no_inputs_and_moments_are(values: list[object], is_input: bool) -> None:
    table = Table(
        pa.table({"first": values, "size": [1.0, 1.0, 2.0], "label": [1.5, 2.5, 3.5]}),
        (Source("f", 0),),
        "key",
    )
    parts = row_parts(table, find_task("regression", NamedCode()), {"label": "label"})
    assert ("first" in parts.columns) == is_input
