"""Several classes per row: for images, and in texts such as red|blue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import surefit
from surefit.encode.encoder import Encoder
from surefit.tasks.classes import class_id, fit_classes
from surefit.tasks.label_separator import find_separator, likely_separator

PARTS = ["left", "right"]


def images(count: int) -> tuple[Any, Any]:
    """Images with a bright left half, right half, both or none, and which."""
    random = np.random.default_rng(0)
    made, lit = random.integers(0, 60, (count, 8, 8)), random.integers(0, 2, (count, 2))
    for image, (left, right) in zip(made, lit, strict=True):
        image[:, :4] += 180 * left
        image[:, 4:] += 180 * right
    return made.astype("uint8"), lit


def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64, 2))


def names(row: Any) -> list[str]:
    return [name for name, there in zip(PARTS, row, strict=True) if there]


FORMS: dict[str, Any] = {
    "lists of names": lambda lit: {"label": [names(row) for row in lit]},
    "arrays of 0 and 1": lambda lit: {"label": lit.astype("float32")},
    "columns of 0 and 1": lambda lit: dict(zip(PARTS, lit.T, strict=True)),
    "texts": lambda lit: {"label": ["|".join(names(row)) or None for row in lit]},
}


@pytest.mark.parametrize("form", FORMS)
def test_images_may_have_several_classes(form: str) -> None:
    made, lit = images(60)
    columns = {"columns": {"label": PARTS}} if form.startswith("columns") else {}
    plan = surefit.check(
        data={"image": [*made], **{n: [*v] for n, v in FORMS[form](lit).items()}},
        model=module(),
        **columns,
    )
    assert plan.job is not None, plan.findings
    assert plan.task is not None
    assert plan.task.name == "image-classification"
    encoder, train = plan.job.pipeline.encoder, plan.job.train
    assert [*map(str, encoder.classes)] == (["0", "1"] if form.startswith("arrays") else PARTS)
    for place in range(5):
        row = lit[int(train.source_row[place])]
        assert train.row(place)["labels"].tolist() == row.tolist()


@pytest.mark.parametrize("labels", [[0, 1] * 30, [*np.eye(2)[[0, 1] * 30]]], ids=["int", "one-hot"])
def test_a_named_column_of_classes_is_not_taken_for_masks(labels: list[Any]) -> None:
    data = {"image": [*images(60)[0]], "kind": labels}
    plan = surefit.check(data=data, model=module(), columns={"label": "kind"})
    assert plan.task is not None
    assert (plan.task.name, plan.ok) == ("image-classification", True)


def test_images_are_trained_and_predicted_with_several_classes(tmp_path: Path) -> None:
    made, lit = images(200)
    data = {"image": [*made], "label": [names(row) for row in lit]}
    run = surefit.train(data=data, model=module(), epochs=6, lr=0.02, output=str(tmp_path / "run"))
    assert run.metrics["macro_f1"] > 0.9
    assert {"top1", "top5"} <= run.metrics.keys()
    found = surefit.predict(run, {"image": [*made[:20]]})
    right = [each["prediction"] == names(row) for each, row in zip(found, lit, strict=False)]
    assert sum(right) > 15


def test_only_texts_whose_parts_recur_are_taken_apart() -> None:
    several = ["red", "blue", "red|blue", "green|red"]
    assert find_separator(several) == "|"
    assert find_separator([name.replace("|", ", ") for name in [*several, "green"]]) == ","
    for single in (
        ["Austin, TX", "Dallas, TX", "Reno, NV"],
        ["fruit", "fruit, dried", "nuts", "nuts, dried"],
        ["a|b", "c|d"],
        ["x;y", "x;z", "w;y", "w;z"],  # always two: a name with two parts
        ["plain", "names"],
    ):
        assert find_separator(single) is None, single


def fitted(labels: list[str], asked: str | None = None) -> Encoder:
    encoder = Encoder("t", {"label": "label"}, settings={"label_separator": asked})
    found = fit_classes(({"label": label} for label in labels), encoder)
    return Encoder("t", {"label": "label"}, fitted=found)


def test_the_separator_can_be_named_or_refused() -> None:
    labels = ["red", "blue", "red|blue"] * 5
    assert class_id({"label": "blue | red"}, fitted(labels)).tolist() == [1, 1]
    assert class_id({"label": "red|blue"}, fitted(labels, "none")) == 2
    slashes = fitted(["a/b", "c/d", "a/d"] * 5, "/")
    assert class_id({"label": "d/b"}, slashes).tolist() == [0, 1, 0, 1]


def test_the_plan_reports_what_it_takes_apart() -> None:
    rows = [{"a": n % 7, "b": n % 5, "label": ["x", "y", "x;y"][n % 3]} for n in range(40)]
    plan = surefit.check(data=rows, model="tiny:mlp", eval_share=0)
    said = "column 'label': labels with ';' are several classes; there are 2."
    assert any(said in note for note in plan.notes)
    plan = surefit.check(data=rows, model="tiny:mlp", eval_share=0, label_separator="none")
    assert not any("several classes" in note for note in plan.notes)
    assert plan.job is not None
    assert plan.job.pipeline.encoder.classes == ["x", "x;y", "y"]


COLOURS = ["red", "blue", "gold"]


def coloured(path: Path, sign: str) -> str:
    """A table whose label names the columns above 0.5, which may be none of them."""
    random = np.random.default_rng(0)
    lines = ["a,b,c,kinds"]
    for values in random.uniform(size=(120, 3)):
        kinds = [name for name, value in zip(COLOURS, values, strict=True) if value > 0.5]
        lines.append(f"{','.join(map(str, values))},{sign.join(kinds)}")
    path.write_text("\n".join(lines))
    return str(path)


def planned(data: str, **options: Any) -> Any:
    columns = {"label": "kinds"}
    task = "tabular-classification"
    return surefit.check(data=data, model="tiny:mlp", task=task, columns=columns, **options)


def test_blank_labels_may_mean_no_class(tmp_path: Path) -> None:
    data = coloured(tmp_path / "rows.csv", ";")
    blank = sum(line.endswith(",") for line in Path(data).read_text().splitlines())
    plan = planned(data)
    (found,) = (found for found in plan.findings if found.code == "SF128")
    assert f"{blank} of 120 labels are blank" in found.message
    assert "accept=[SF128]" in found.fix
    assert plan.ledger.dropped_rows == {"no_label": blank}
    accepted = planned(data, accept=["SF128"])
    assert accepted.ledger.dropped_rows == {}
    encoder, train = accepted.job.pipeline.encoder, accepted.job.train
    assert encoder.classes == sorted(COLOURS)
    empty = [place for place in range(len(train)) if not train.value("labels", place).any()]
    assert 0 < len(empty) <= blank


def test_another_sign_between_classes_is_reported(tmp_path: Path) -> None:
    data = coloured(tmp_path / "rows.csv", " / ")
    (found,) = (found for found in planned(data).findings if found.code == "SF129")
    assert "label_separator=/" in found.fix
    for sign in ("/", "none"):
        plan = planned(data, label_separator=sign)
        assert "SF129" not in [found.code for found in plan.findings]


@pytest.mark.parametrize(
    "labels",
    [
        ["n/a", "km/h", "m/s"],
        ["km/h", "m/h", "km/s", "m/s", "km", "m"],
        ["Sci-fi / Fantasy", "Fantasy", "Drama", "Action / Adventure", "Comedy"],
        ["R&B", "Rock & Roll", "Rock", "Drum & Bass", "Pop"],
        ["TCP/IP", "UDP/IP", "TCP", "UDP", "IP"],
        ["A+", "A", "B+", "B", "C"],
        ["1/2", "1/3", "2/3", "1"],
        ["fruit", "fruit/apple", "fruit/pear", "veg/leek", "veg", "fruit/fig"],
    ],
)
def test_signs_within_names_are_no_separators(labels: list[str]) -> None:
    assert likely_separator(labels) is None
