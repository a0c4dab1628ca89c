"""Objects from Python as data: the same rows, whatever holds them, and faults with their row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import surefit
from builders import MeanPool, feature_rows
from opening import entry_files, fault_of
from surefit.data.open_data import open_table
from surefit.data.python.rows_to_arrow import open_rows
from surefit.data.table import CHUNK_ROWS
from surefit.errors import UsageError

datasets.disable_progress_bars()

TEXTS, LABELS = ["one", None, "three"], [2, 0, 1]
ROWS = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
COLUMNS = {"text": TEXTS, "label": LABELS}


class Items(torch.utils.data.Dataset[Any]):
    """A map-style Dataset of a function of the row's number."""

    def __init__(self, item: Callable[[int], Any], count: int = 6) -> None:
        self.item = item
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.item(index)


HOLDERS: dict[str, Callable[[], Any]] = {
    "list of dicts": lambda: ROWS,
    "list of tuples": lambda: list(zip(TEXTS, LABELS, strict=True)),
    "pandas": lambda: pd.DataFrame(COLUMNS, index=[7, 7, 9]),
    "pandas with categories": lambda: pd.DataFrame(COLUMNS).astype({"text": "category"}),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "polars with categories": lambda: pl.DataFrame(
        COLUMNS, schema_overrides={"text": pl.Categorical}
    ),
    "pyarrow": lambda: pa.table(COLUMNS),
    "pyarrow batch": lambda: pa.record_batch(COLUMNS),
    "datasets": lambda: datasets.Dataset.from_dict(COLUMNS),
    "chosen rows": lambda: datasets.Dataset.from_list([*ROWS, *ROWS]).select([3, 1, 5]),
    "DatasetDict": lambda: datasets.DatasetDict(train=datasets.Dataset.from_dict(COLUMNS)),
    "dict of columns": lambda: COLUMNS,
    "dict with an array": lambda: {"text": TEXTS, "label": np.array(LABELS)},
    "torch Dataset of dicts": lambda: Items(ROWS.__getitem__, 3),
    "torch Dataset of tuples": lambda: Items(lambda i: (TEXTS[i], torch.tensor(LABELS[i])), 3),
    "DataLoader": lambda: DataLoader(
        ROWS, batch_size=2, collate_fn=lambda rows: pd.DataFrame(rows).to_dict("list")
    ),  # type: ignore[arg-type]
    "DataLoader without batches": lambda: DataLoader(ROWS, batch_size=None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", HOLDERS)
def test_same_rows_whatever_holds_them(name: str) -> None:
    assert list(open_table(HOLDERS[name]()).rows()) == ROWS


@pytest.mark.parametrize("name", HOLDERS)
def test_key_is_of_the_content(name: str) -> None:
    assert open_table(HOLDERS[name]()).key == open_table(HOLDERS[name]()).key
    assert open_table(ROWS).key != open_table(ROWS[::-1]).key


def test_dataset_with_a_transform_gives_transformed_rows() -> None:
    data = datasets.Dataset.from_dict({"x": [1, 2]})
    data.set_transform(lambda batch: {"x": [10 * value for value in batch["x"]]})
    assert [row["x"] for row in open_table(data).rows()] == [10, 20]


def test_pandas_blanks_are_missing_and_cells_may_hold_arrays() -> None:
    frame = pd.DataFrame({"n": [1.5, np.nan], "x": [np.ones((1, 2)), np.ones((3, 2))]})
    rows = list(open_table(frame).rows())
    assert [row["n"] for row in rows] == [1.5, None]
    assert [row["x"].shape for row in rows] == [(1, 2), (3, 2)]


@pytest.mark.parametrize("given", [np.arange(6.0).reshape(3, 2), torch.arange(6.0).reshape(3, 2)])
def test_array_is_the_column_features(given: Any) -> None:
    rows = list(open_table(given).rows())
    np.testing.assert_array_equal([row["features"] for row in rows], given)


ITEMS: dict[str, tuple[Callable[[int], Any], dict[str, tuple[int, ...]]]] = {
    "features and a class": (lambda i: (torch.ones(3, 2), i), {"features": (3, 2), "label": ()}),
    "ragged features": (lambda i: (torch.ones(i + 1, 2), i), {"features": (6, 2), "label": ()}),
    "a tensor": (lambda i: torch.ones(4), {"features": (4,)}),
    "planes": (lambda i: (torch.ones(3, 5, 5), i), {"image": (3, 5, 5), "label": ()}),
    "grey bytes": (lambda i: (np.ones((5, 5), np.uint8), i), {"image": (5, 5), "label": ()}),
    "pictures": (lambda i: (Image.new("P", (2, 3 + i)), i), {"image": (8, 2, 3), "label": ()}),
    "a third": (lambda i: ("a", i, 0.5), {"text": (), "label": (), "column_2": ()}),
    "a dict": (lambda i: {"a": torch.tensor(i), "b": torch.ones(2)}, {"a": (), "b": (2,)}),
}


@pytest.mark.parametrize("name", ITEMS)
def test_items_of_a_dataset(name: str) -> None:
    item, shapes = ITEMS[name]
    table = open_table(Items(item))
    assert {key: np.shape(value) for key, value in table.row(5).items()} == shapes
    assert "were read once" in table.findings[0].message


def divided(index: int) -> tuple[float, int]:
    return 1 / (index - 4), index


FAULTS: dict[str, tuple[Any, str, int]] = {
    "an item raises": (Items(divided), "SF120", 4),
    "an item of another kind": (Items(lambda i: (1.0, 2) if i < 3 else 1.0), "SF213", 3),
    "an item of another size": (Items(lambda i: (1.0,) * (2 + (i > 2))), "SF213", 3),
    "another type": (Items(lambda i: {"x": "a" if i == 2 else 1}), "SF103", 2),
    "another type first": (Items(lambda i: {"x": 1 if i else "a"}), "SF103", 0),
    "text among arrays": (Items(lambda i: {"x": "a" if i == 5 else torch.ones(2)}), "SF213", 5),
    "another rank": (Items(lambda i: (torch.ones((2,) * (1 + (i > 1))), 1)), "SF208", 2),
    "what cannot be stored": ([{"x": 1}, {"x": object()}], "SF213", 1),
    "a list among dicts": ([{"x": 1}, [2]], "SF213", 1),
    "a frame of two types": (pd.DataFrame({"x": [1, 2, "a"]}), "SF103", 2),
    "a batch raises": (DataLoader(Items(divided), batch_size=2), "SF120", 4),
    "a late type": ([{"x": 1}] * CHUNK_ROWS * 2 + [{"x": "a"}], "SF103", CHUNK_ROWS * 2),
    "an early type": ([{}] * CHUNK_ROWS + [{"x": "a"}] + [{"x": 1}] * 5, "SF103", CHUNK_ROWS),
    "a type of the first chunk": (
        [{"x": "a"}] + [{}] * CHUNK_ROWS + [{"x": 1}] * 5,
        "SF103",
        0,
    ),
    "a late rank": (
        [{"x": np.ones((2, 3))}] * CHUNK_ROWS + [{"x": np.ones(5)}],
        "SF208",
        CHUNK_ROWS,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named_by_row(name: str, cache: Path) -> None:
    data, code, row = FAULTS[name]
    found = fault_of(data)
    assert (found.code, found.where["row"]) == (code, row)
    assert f"row {row}" in found.message
    assert not entry_files(cache)


class NoLength(torch.utils.data.Dataset[int]):
    """A Dataset that does not say how long it is."""

    def __getitem__(self, index: int) -> int:
        return 1


REFUSED: dict[str, tuple[Any, str]] = {
    "no length": (NoLength(), "without a length"),
    "a lazy frame": (pl.LazyFrame({"x": [1]}), "not computed yet"),
    "a series": (pd.Series([1]), "is a Series"),
    "a number": (5, "is a int"),
    "splits without train": (datasets.DatasetDict(), "no train"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rows_is_the_users_mistake(name: str) -> None:
    data, message = REFUSED[name]
    with pytest.raises(UsageError, match=message):
        open_table(data)


def test_columns_of_different_lengths() -> None:
    assert fault_of({"x": [1, 2], "y": [1]}).code == "SF106"
    assert fault_of({"x": [1, 2], "y": 3}).where == {"column": "y"}
    assert fault_of(np.array(3)).code == "SF208"
    assert fault_of(np.array([{}])).code == "SF213"
    uneven = DataLoader(range(4), batch_size=2, collate_fn=lambda r: {"x": r, "y": [1]})  # type: ignore[arg-type]
    assert fault_of(uneven).code == "SF201"


def test_loader_is_read_once_in_its_order_and_says_so() -> None:
    data = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))
    orders = []
    for _ in range(2):
        random_state = torch.get_rng_state()
        table = open_table(DataLoader(data, batch_size=3, shuffle=True, drop_last=True))
        assert torch.equal(random_state, torch.get_rng_state())
        orders.append([row["label"] for row in table.rows()])
    assert orders[0] == orders[1] != sorted(orders[0])
    (found,) = table.findings
    assert "9 of the DataLoader's 10 rows" in found.message


def test_a_sampler_that_repeats_rows_is_a_warning() -> None:
    data = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))
    sampler = torch.utils.data.WeightedRandomSampler([1.0] * 5 + [0.0] * 5, 10)
    (found,) = (
        f for f in open_table(DataLoader(data, 4, sampler=sampler)).findings if f.code == "SF126"
    )
    assert "WeightedRandomSampler" in found.message
    assert "of 10 rows" in found.message
    half = torch.utils.data.SubsetRandomSampler(range(5))
    assert "SF126" not in [f.code for f in open_table(DataLoader(data, 4, sampler=half)).findings]


VALUES = st.one_of(
    st.none(),
    st.integers(1, 4).map(lambda steps: np.full((steps, 2), steps, np.float32)),
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.tuples(VALUES, st.one_of(st.none(), st.integers(), st.floats(-9, 9)))), st.data()
)
def test_columns_grow_in_one_pass(rows: list[tuple[Any, Any]], data: st.DataObject) -> None:
    rows = [(array, n if n is None or abs(n) < 2**50 else 7) for array, n in rows]
    size = data.draw(st.integers(1, 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("surefit.data.python.rows_to_arrow.CHUNK_ROWS", size)
        asked = iter([{"x": array, "n": number} for array, number in rows])
        opened = list(open_rows(asked).rows())
    assert [row["n"] for row in opened] == [number for _, number in rows]
    for (array, _), row in zip(rows, opened, strict=True):
        if any(value is not None for value, _ in rows):
            np.testing.assert_array_equal(row["x"], np.ones((0, 2)) if array is None else array)


def pad_by_hand(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A user's own collate_fn (seed 004), which leaves a mark."""
    values = torch.nn.utils.rnn.pad_sequence([row["inputs_embeds"] for row in rows], True)
    lengths = torch.tensor([len(row["inputs_embeds"]) for row in rows])
    mask = torch.arange(values.shape[1]) < lengths[:, None]
    labels = [row["labels"] for row in rows if "labels" in row]
    batch = {"inputs_embeds": values, "attention_mask": mask.long(), "scale": torch.tensor(3.0)}
    return {**batch, "labels": torch.stack(labels)} if labels else batch


class Scaled(MeanPool):
    """A module that needs what only the collate_fn gives."""

    def forward(  # type: ignore[override]
        self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor, scale: torch.Tensor
    ) -> torch.Tensor:
        assert scale == 3.0
        return super().forward(inputs_embeds, attention_mask) * scale


def test_own_collate_fn_makes_every_batch(tmp_path: Path) -> None:
    rows = feature_rows(60)
    run = surefit.train(
        data=rows,
        model=Scaled(),
        collate_fn=pad_by_hand,
        epochs=20,
        lr=0.02,
        output=str(tmp_path / "run"),
    )
    assert run.metrics["accuracy"] > 0.6
    assert surefit.evaluate(run, rows)["accuracy"] > 0.8
    predictions = surefit.predict(run, [{"features": row["features"]} for row in rows])
    assert (
        np.mean([p["prediction"] == r["label"] for p, r in zip(predictions, rows, strict=True)])
        > 0.8
    )


def test_collate_fn_that_gives_too_little_is_named(tmp_path: Path) -> None:
    plan = surefit.check(
        data=feature_rows(30), model=MeanPool(), collate_fn=lambda rows: {"x": torch.ones(2)}
    )
    assert not plan.ok
    assert "attention_mask" in plan.findings[-1].message


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
