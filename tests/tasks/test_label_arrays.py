"""Labels as arrays: [N, 1] is one class per row; lists of 0 and 1 have a place for each class."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import surefit
from builders import MeanPool, feature_rows
from surefit.encode.encoded_row import RowFaultError
from surefit.encode.encoder import Encoder
from surefit.tasks.classes import class_id, fit_classes

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


def fit(*labels: Any) -> dict[str, Any]:
    encoder = Encoder("text-classification", {"text": "text", "label": "label"})
    return fit_classes(({"label": label} for label in labels), encoder)


def test_one_hot_lists_are_one_class() -> None:
    rows = [[int(n % 3 == place) for place in range(3)] for n in range(30)]
    fitted = fit(*rows)
    assert fitted == {"classes": [0, 1, 2], "class_counts": [10, 10, 10], "hot_size": 3}
    encoder = replace(Encoder("t", {"label": "label"}), fitted=fitted)
    assert class_id({"label": [0, 0, 1]}, encoder) == 2
    with pytest.raises(RowFaultError, match="expected 3 values of 0 and 1"):
        class_id({"label": [0, 1]}, encoder)


@pytest.mark.parametrize("kind", [int, float, bool])
def test_lists_of_0_and_1_are_several_classes(kind: type) -> None:
    fitted = fit(*([kind(n % 2), kind(n % 3 > 0), kind(0)] for n in range(30)))
    assert fitted["multi_label"]
    assert fitted["classes"] == [0, 1]  # no row has the third
    encoder = replace(Encoder("t", {"label": "label"}), fitted=fitted)
    assert class_id({"label": [kind(0), kind(1), kind(0)]}, encoder).tolist() == [0, 1]
    assert class_id({"label": [kind(0)] * 3}, encoder).tolist() == [0, 0]


def test_class_numbers_0_and_1_in_lists_stay_class_numbers() -> None:
    fitted = fit(*[[0, 1], [1, 0], [2], [0]] * 5)
    assert fitted == {"classes": [0, 1, 2], "class_counts": [15, 10, 5], "multi_label": True}


def test_a_list_of_another_length_is_at_fault() -> None:
    with pytest.raises(RowFaultError, match="the lists of 0 and 1 before it have 3 values"):
        fit([0, 1, 1], [1, 0, 0], [0, 1])


def test_a_class_twice_in_a_list_is_not_called_one_hot() -> None:
    with pytest.raises(RowFaultError, match="each of the row's classes once") as caught:
        fit(["a", "b"], ["a", "a"])
    assert "argmax" not in caught.value.fix
