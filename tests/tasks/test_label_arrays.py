"""Labels as arrays: [N, 1] is one class per row, one-hot gets a message that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import surefit
from builders import MeanPool, feature_rows

CLASSES = np.array([row["label"] for row in feature_rows(30)])


def check(tmp_path: Path, labels: Any) -> Any:
    numbers = np.random.default_rng(0).normal(size=(30, 5, 4)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=numbers, y=labels)
    return surefit.check(
        data=str(tmp_path / "rows.npz"), model=MeanPool(), task="feature-classification"
    )


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_one_column_of_labels_is_one_class_per_row(tmp_path: Path, dtype: str) -> None:
    plan = check(tmp_path, CLASSES[:, None].astype(dtype))
    assert plan.ok
    assert plan.job.pipeline.encoder.classes == [0, 1, 2]


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_one_hot_labels_are_explained(tmp_path: Path, dtype: str) -> None:
    plan = check(tmp_path, np.eye(3)[CLASSES].astype(dtype))
    (found,) = [found for found in plan.findings if found.severity == "error"]
    assert found.code == "SF205"
    assert "row 0: the label is the list [" in found.message
    assert "argmax" in found.fix


def test_one_hot_lists_are_not_taken_for_class_lists() -> None:
    rows = [
        {"text": f"word {n}", "label": [int(n % 3 == place) for place in range(3)]}
        for n in range(30)
    ]
    plan = surefit.check(data=rows, model="tiny:bert", task="text-classification")
    assert [found.code for found in plan.findings if found.severity == "error"] == ["SF205"]
