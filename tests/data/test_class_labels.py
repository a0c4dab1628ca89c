"""Class names of `datasets` are the labels, from Python, from folders and from Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest

from surefit.data.open_data import open_table

NAMES = ["ham", "spam"]


@pytest.fixture
def data() -> Any:
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=NAMES),
            "tags": datasets.Sequence(datasets.ClassLabel(names=["O", "B-X"])),
            "count": datasets.Value("int64"),
        }
    )
    columns = {"text": ["a", "b", "c"], "label": [1, 0, -1], "tags": [[0, 1], [], [1]]}
    return datasets.Dataset.from_dict({**columns, "count": [1, 0, 1]}, features=features)


@pytest.mark.parametrize("how", ["object", "chosen rows", "folder", "parquet"])
def test_names_stand_for_their_numbers(data: Any, how: str, tmp_path: Path) -> None:
    opened: Any = data
    if how == "chosen rows":
        opened = data.select([2, 1, 0]).select([2, 1, 0])
    elif how == "folder":
        data.save_to_disk(tmp_path / "saved")
        opened = tmp_path / "saved"
    elif how == "parquet":
        data.to_parquet(tmp_path / "a.parquet")
        opened = tmp_path / "a.parquet"
    rows = list(open_table(opened).rows())
    assert [row["label"] for row in rows] == ["spam", "ham", None]
    assert [row["tags"] for row in rows] == [["O", "B-X"], [], ["B-X"]]
    assert [row["count"] for row in rows] == [1, 0, 1]
