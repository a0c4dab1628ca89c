"""The split: exact counts, equal rows on one side, and a pure function of content and seed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import surefit
from builders import write_jsonl
from surefit.data import row_arrays
from surefit.data.open_data import open_table
from surefit.data.python.rows_to_arrow import open_rows
from surefit.data.row_arrays import distinct, is_among, new_array, number_rows, places_of, take
from surefit.data.row_parts import hash_columns
from surefit.data.split import (
    NO_CONTENT,
    count_repeats,
    split_by_group,
    split_by_input,
    split_rows,
)


def numbers(count: int) -> Any:
    return np.arange(count, dtype=np.uint64)


@pytest.mark.parametrize(
    ("rows", "share", "held"),
    [
        (1000, 0.1, 100),
        (1000, 0.25, 250),
        (7, 0.5, 4),
        (3, 0.1, 1),  # a share that rounds to nothing still holds out one row
        (2, 0.9, 1),  # one row is always left to train on
        (1, 0.5, 0),
        (1000, 0.0, 0),
        (0, 0.1, 0),
    ],
)
def test_number_of_rows_held_out(rows: int, share: float, held: int) -> None:
    split = split_rows(numbers(rows), share, seed=0)
    assert (len(split.train), len(split.evaluation)) == (rows - held, held)


@given(
    hashes=st.lists(st.integers(0, 12), max_size=60),
    share=st.floats(0, 0.99),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_row_is_on_one_side_and_equal_rows_on_the_same(
    hashes: list[int], share: float, seed: int
) -> None:
    keys = np.array(hashes, np.uint64)
    split = split_rows(keys, share, seed)
    together = np.concatenate([split.train, split.evaluation])
    assert sorted(together.tolist()) == list(range(len(hashes)))
    assert not set(keys[split.train].tolist()) & set(keys[split.evaluation].tolist())
    assert len(split.evaluation) <= max(1, round(len(hashes) * share))
    assert len(split.train) >= min(1, len(hashes))
    full = [number for number in hashes if number != NO_CONTENT]
    assert count_repeats(keys) == len(full) - len(set(full))
    assert np.all(np.diff(split.train) > 0)
    assert np.all(np.diff(split.evaluation) > 0)
    again = split_rows(keys, share, seed)
    assert again.evaluation.tolist() == split.evaluation.tolist()


def test_hashes_tell_rows_apart_by_the_chosen_columns_only() -> None:
    rows = [
        {"text": "a", "label": 1, "id": 1},
        {"text": "a", "label": 1, "id": 2},
        {"text": "a", "label": 2, "id": 3},
        {"text": "a1", "label": None, "id": 4},
        {"text": None, "label": 1, "id": 5},
    ]
    table = open_rows(rows)
    hashes = hash_columns(table, ["text", "label"])
    assert hashes[0] == hashes[1]
    assert len(set(hashes.tolist())) == 4
    assert len(set(hash_columns(table, ["text", "label", "id"]).tolist())) == 5


def test_hashes_tell_arrays_apart_by_shape_and_value() -> None:
    values = [[[0, 1, 2], [3, 4, 5]], [[0, 1, 2], [3, 4, 5]], [[0, 1], [2, 3], [4, 5]], [[0, 1, 2]]]
    hashes = hash_columns(open_rows([{"x": value} for value in values]), ["x"])
    assert hashes[0] == hashes[1]
    assert len(set(hashes.tolist())) == 3


def test_hashes_do_not_depend_on_where_the_rows_lie(tmp_path: Path) -> None:
    rows = [{"x": f"row {place}"} for place in range(1030)]
    whole = open_table(write_jsonl(tmp_path / "whole.jsonl", rows))
    parts = [
        write_jsonl(tmp_path / "a.jsonl", rows[:5]),
        write_jsonl(tmp_path / "b.jsonl", rows[5:]),
    ]
    np.testing.assert_array_equal(
        hash_columns(whole, ["x"]), hash_columns(open_table(parts), ["x"])
    )


def test_rows_without_content_are_neither_repeated_nor_leaked(tmp_path: Path) -> None:
    for name, words in (("train", "a b c d e f g h"), ("test", "i j k l")):
        lines = [line for word in words.split() for line in (f"{word} {word}", "", "  ")]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    options = {"data": str(tmp_path / "train.txt"), "model": "tiny:llama", "task": "causal-lm"}
    options["max_dropped_share"] = "0.9"
    plan = surefit.check(**options, eval_data=str(tmp_path / "test.txt"))
    assert plan.ok
    assert "SF210" not in {found.code for found in plan.findings}
    assert not any("equal another row" in note for note in plan.notes)
    plan = surefit.check(**options, eval_data=str(tmp_path / "train.txt"))
    (leak,) = [found for found in plan.findings if found.code == "SF210"]
    assert leak.message.startswith("8 of 24 ")
    hashes = hash_columns(open_table(tmp_path / "train.txt"), ["text"])
    assert count_repeats(hashes) == 0


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=2, max_size=200))
def test_classes_share_both_sets_and_copies_stay_together(rows: list[tuple[int, int]]) -> None:
    hashes = np.array([group for group, _ in rows], np.uint64)
    classes = np.array([name for _, name in rows])
    split = split_rows(hashes, 0.2, seed=0, classes=classes)
    assert not set(hashes[split.train]) & set(hashes[split.evaluation])
    assert sorted([*split.train, *split.evaluation]) == list(range(len(rows)))
    assert len(split.train) > 0


def test_each_class_has_its_share_and_one_row_stays_for_training() -> None:
    classes = np.repeat([0, 1, 2, 3], [700, 250, 49, 1])
    split = split_rows(numbers(1000), 0.2, seed=3, classes=classes)
    assert np.bincount(classes[split.evaluation], minlength=4).tolist() == [140, 50, 10, 0]


def test_split_with_classes_is_a_function_of_content_not_of_order() -> None:
    hashes, classes = np.arange(1, 101, dtype=np.uint64), np.arange(100) % 3
    order = np.random.default_rng(0).permutation(100)
    one = split_rows(hashes, 0.2, 0, classes)
    two = split_rows(hashes[order], 0.2, 0, classes[order])
    assert set(hashes[one.evaluation]) == set(hashes[order][two.evaluation])


def test_groups_stay_together_and_so_do_their_copies() -> None:
    groups = np.repeat(np.arange(20, dtype=np.uint64), 5)
    inputs = np.arange(1, 101, dtype=np.uint64)
    inputs[7], inputs[93] = 500, 500  # one text in the groups 1 and 18
    split = split_by_group(groups, inputs, inputs, 0.2, seed=0)
    held = set(groups[split.evaluation].tolist())
    assert len(split.evaluation) == 20
    assert not held & set(groups[split.train].tolist())
    assert (1 in held) == (18 in held)


def test_column_of_groups_is_no_input(tmp_path: Path) -> None:
    rows = [{"size": n * 7 % 31, "patient": n % 10, "label": "ab"[n % 3 > 0]} for n in range(60)]
    plan = surefit.check(
        data=rows, model="tiny:mlp", task="tabular-classification", split={"by": "patient"}
    )
    assert plan.ok
    read = {part.column for part in plan.job.pipeline.encoder.input.columns}
    assert read == {"size"}
    assert plan.columns == {"size": "features", "patient": "split.by", "label": "label"}


@pytest.fixture(params=[(1 << 16, 1 << 16), (7, 3)], ids=["large blocks", "small blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_arrays, "BLOCK_ROWS", request.param[0])
    monkeypatch.setattr(row_arrays, "FEW_ROWS", request.param[1])


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 14, 50])
@pytest.mark.usefixtures("blocks")
def test_they_are_what_numpy_computes(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 9, count).astype(np.uint64)
    names, sizes = np.unique(values, return_counts=True)
    assert [each.tolist() for each in distinct(values)] == [names.tolist(), sizes.tolist()]
    assert number_rows(count).tolist() == list(range(count))
    assert places_of(values > 4).tolist() == np.flatnonzero(values > 4).tolist()
    assert places_of(values > 4, False).tolist() == np.flatnonzero(values <= 4).tolist()
    assert take(values, places_of(values > 4)).tolist() == values[values > 4].tolist()
    among = np.array([2, 3, 11], np.uint64)
    assert is_among(values, among).tolist() == np.isin(values, among).tolist()


def test_a_full_disk_leaves_them_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    made = new_array(row_arrays.FEW_ROWS + 1, np.int64)
    assert made.base is None
    assert not made.any()


@pytest.mark.usefixtures("blocks")
def test_which_rows_are_validation_rows_is_as_it_was() -> None:
    """Digests of the splits before arrays were mapped: runs that resume have the same rows."""
    random = np.random.default_rng(5)
    whole = random.integers(1, 2**63, 3000).astype(np.uint64)
    inputs = random.integers(1, 900, 3000).astype(np.uint64)
    classes = random.integers(0, 4, 3000).astype(np.int16)
    splits = [
        split_rows(whole, 0.1, 3),
        split_rows(whole, 0.1, 3, classes),
        split_by_input(inputs, whole, 0.1, 3),
        split_by_input(inputs, whole, 0.1, 3, classes),
        split_by_input(inputs % np.uint64(3) + np.uint64(1), whole, 0.1, 3),
    ]
    text = " ".join(",".join(map(str, split.evaluation)) for split in splits)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGEST


DIGEST = "ab4b533a00b86864"
