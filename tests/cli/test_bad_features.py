"""Bad rows of features, arrays of other shapes and modules that do not suit them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_input import found_by_check

from builders import (
    feature_rows,
    write_jsonl,
)

pytestmark = pytest.mark.usefixtures("folder")


def steps(place: int | None = None, **odd: Any) -> list[dict[str, Any]]:
    """Feature rows of width 4, one of them odd."""
    rows = [{**row, "features": row["features"].tolist()} for row in feature_rows(30)]
    if place is not None:
        rows[place] = {**rows[place], **odd}
    return rows


def every(**odd: Any) -> list[dict[str, Any]]:
    """Feature rows, all of them odd in the same way."""
    return [{**row, **odd} for row in steps()]


FEATURE_FAULTS: dict[str, tuple[list[dict[str, Any]], list[str], str, dict[str, Any], str]] = {
    "another width": (
        steps(21, features=[[1.0, 2.0, 3.0]]),
        [],
        "SF208",
        {"row": 21, "column": "features"},
        "width 3; the other rows have width 4",
    ),
    "two widths in one row": (
        steps(21, features=[[1.0, 2.0, 3.0, 4.0], [1.0]]),
        [],
        "SF208",
        {"row": 21, "column": "features"},
        "steps have different widths within the row: [1, 4]",
    ),
    "a missing step": (
        steps(21, features=[[1.0, 2.0, 3.0, 4.0], None]),
        [],
        "SF208",
        {"row": 21, "column": "features"},
        "steps have different widths within the row: [0, 4]",
    ),
    "not a number": (
        steps(21, features=[[1.0, 2.0, float("nan"), 4.0]]),
        [],
        "SF207",
        {"row": 21, "column": "features"},
        "column 'features' contains nan at [0, 2]",
    ),
    "a missing value": (
        steps(21, features=[[1.0, 2.0, None, 4.0]]),
        [],
        "SF207",
        {"row": 21, "column": "features"},
        "contains nan at [0, 2]",
    ),
    "a mask of another length": (
        [{**row, "mask": [1] * (len(row["features"]) + (n == 5))} for n, row in enumerate(steps())],
        [],
        "SF201",
        {"row": 5, "column": "mask"},
        "but 'features', which it is aligned with, has length",
    ),
    "float labels": (
        steps(21, label=1.5),
        [],
        "SF205",
        {"row": 21, "column": "label"},
        "the label 1.5 is a float; expected a class name or number",
    ),
    "lists with a label twice": (
        every(label=["a", "a"]),
        [],
        "SF205",
        {"column": "label"},
        "the label is the list ['a', 'a']; expected each of the row's classes once",
    ),
    "labels nearly all different": (
        [{**row, "label": f"row {n}"} for n, row in enumerate(steps())],
        [],
        "SF205",
        {"column": "label"},
        "column 'label' has 27 different values in 27 training rows, too many to be classes.",
    ),
    "one class only": (
        every(label="a"),
        [],
        "SF205",
        {"column": "label"},
        "column 'label' has 1 class in 27 training rows; at least 2 are needed.",
    ),
    "no label column": (
        [{"features": row["features"]} for row in steps()],
        ["--task", "feature-classification"],
        "SF202",
        {"file": "rows.jsonl"},
        "needs columns 'features' and 'label'; the columns are features (float64 array [*, *])",
    ),
    "unknown column": (
        steps(),
        ["--set", "columns.label=stars"],
        "SF202",
        {"column": "stars"},
        "columns.label names the column 'stars'; the data has features, label.",
    ),
    "columns the wrong way round": (
        steps(),
        ["--set", "columns.label=features", "--set", "columns.features=label"],
        "SF205",
        {"column": "features"},
        "expected one class per row",
    ),
}


@pytest.mark.parametrize("name", FEATURE_FAULTS)
def test_fault_of_feature_rows_is_a_finding_with_its_row(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    rows, options, expected, where, message = FEATURE_FAULTS[name]
    write_jsonl(folder / "rows.jsonl", rows)
    code, plan = found_by_check(capsys, "--data", "rows.jsonl", "--model", "net:make", *options)
    assert code == 1
    (found,) = (found for found in plan["findings"] if found["severity"] == "error")
    assert found["code"] == expected
    assert where.items() <= found["where"].items()
    assert message in found["message"]


ARRAY_FAULTS: dict[str, tuple[tuple[int, ...], list[str], str, str]] = {
    "flat rows": ((30, 22), [], "SF421", "sequence length × feature size may be 11 × 2, 2 × 11."),
    "flat rows cut unevenly": (
        (30, 20),
        ["--set", "features.steps=7"],
        "SF435",
        "[20], which does not fit: features.steps is 7",
    ),
    "a width that no axis has": (
        (30, 5, 6),
        ["--set", "features.width=4"],
        "SF435",
        "are [5, 6], but features.width is 4",
    ),
    "one axis too many": ((30, 2, 3, 4), [], "SF202", "No task could be inferred"),
}


@pytest.mark.parametrize("name", ARRAY_FAULTS)
def test_array_of_the_wrong_shape_is_a_finding(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    shape, options, expected, message = ARRAY_FAULTS[name]
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    np.savez(folder / "array.npz", features=values, label=np.arange(30) % 3)
    code, plan = found_by_check(
        capsys, "--data", "array.npz", "--model", "net:make", "--set", "eval_share=0", *options
    )
    assert code == 1
    found = plan["findings"][-1]
    assert (found["code"], found["severity"]) == (expected, "error")
    assert message in found["message"]
    assert "features." in found["fix"] or "sizes" in found["fix"] or expected == "SF202"


@pytest.mark.parametrize(
    ("shape", "code", "longest"),
    [((30, 20), "SF420", 5), ((30, 4, 7), "SF422", 7), ((30, 5, 6), "SF433", 5)],
    ids=["flat rows", "transposed axes", "a width the model does not have"],
)
def test_array_of_another_shape_is_adapted(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    shape: tuple[int, ...],
    code: str,
    longest: int,
) -> None:
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    np.savez(folder / "array.npz", features=values, label=np.arange(30) % 3)
    exit_code, plan = found_by_check(
        capsys, "--data", "array.npz", "--model", "net:make", "--set", "eval_share=0"
    )
    assert exit_code == 0
    assert (code, "fixed") in {(found["code"], found["severity"]) for found in plan["findings"]}
    assert plan["batches"]["longest"] == [8, longest]


@pytest.mark.parametrize("setting", ["features.steps=5", "features.width=4"])
def test_flat_rows_are_cut_as_asked(
    folder: Path, capsys: pytest.CaptureFixture[str], setting: str
) -> None:
    values = np.random.default_rng(0).normal(size=(30, 20)).astype(np.float32)
    np.savez(folder / "array.npz", features=values, label=np.arange(30) % 3)
    options = ["--data", "array.npz", "--model", "net:make", "--set", setting]
    code, plan = found_by_check(capsys, *options)
    assert (code, plan["batches"]["longest"]) == (0, [8, 5])
    assert [found["code"] for found in plan["findings"]] == ["SF420"]


BAD_MODULES: dict[str, tuple[str, str, str]] = {
    "too few outputs": ("return Net(2)", "SF303", "has 2 outputs, but the data has 3 classes"),
    "no module": ("return 'net'", "SF301", "returned a str; expected a torch.nn.Module"),
    "a fault of its own": ("return missing", "SF305", "raised NameError: name 'missing'"),
}


@pytest.mark.parametrize("name", BAD_MODULES)
def test_module_that_does_not_suit_the_data(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    line, expected, message = BAD_MODULES[name]
    source = (folder / "net.py").read_text().replace("return Net(num_classes)", line)
    module = f"bad_net_{expected.lower()}"  # Python imports a module once per name
    (folder / f"{module}.py").write_text(source)
    code, plan = found_by_check(capsys, "--data", "features.npz", "--model", f"{module}:make")
    assert code == 1
    (found,) = (each for each in plan["findings"] if each["severity"] == "error")
    assert found["code"] == expected
    assert message in found["message"]
