"""How rows of features become [steps, width]: a pure plan, and nothing guessed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import surefit
from builders import assert_same_predictions, feature_rows
from surefit.data.open_data import open_table
from surefit.data.python.objects import open_columns
from surefit.data.row_arrays import (
    Axis,
    RowShape,
    fixed_shape,
    row_shape,
)
from surefit.errors import FindingError
from surefit.inputs.features.feature_layout import (
    FeatureLayout,
    Hints,
    plan_layout,
    planned_axes,
)

SEED = Hints(vocab_size=271, hidden_size=256, positions=20)


def axis(*sizes: int) -> Axis:
    return Axis(min(sizes), max(sizes), math.gcd(*sizes), 1 / len(sizes))


TURNED = FeatureLayout(transposed=True)
PLANNED: dict[str, tuple[RowShape, Hints, FeatureLayout, list[str]]] = {
    "as it should be": (fixed_shape(20, 271), SEED, FeatureLayout(), []),
    "another width": (fixed_shape(999, 4000), SEED, FeatureLayout(), []),
    "flat by vocab_size": (fixed_shape(5420), SEED, FeatureLayout(width=271), ["SF420"]),
    "flat by hidden_size": (fixed_shape(512), SEED, FeatureLayout(width=256), ["SF420"]),
    "flat by positions": (fixed_shape(20 * 7), SEED, FeatureLayout(width=7), ["SF420"]),
    "flat by training": (fixed_shape(600), Hints(trained=6), FeatureLayout(width=6), ["SF420"]),
    "flat by width": (fixed_shape(600), Hints(width=6), FeatureLayout(width=6), ["SF420"]),
    "flat by steps": (fixed_shape(600), Hints(steps=100), FeatureLayout(width=6), ["SF420"]),
    "flat, one divisor": (fixed_shape(49), Hints(), FeatureLayout(width=7), ["SF420"]),
    "flat and ragged": (
        RowShape((axis(84, 120),)),
        Hints(width=12),
        FeatureLayout(width=12),
        ["SF420"],
    ),
    "flat and ragged, by a prime": (
        RowShape((axis(14, 21),)),
        Hints(),
        FeatureLayout(width=7),
        ["SF420"],
    ),
    "transposed by vocab_size": (fixed_shape(271, 20), SEED, TURNED, ["SF420"]),
    "transposed by training": (fixed_shape(6, 100), Hints(trained=6), TURNED, ["SF420"]),
    "transposed by width": (fixed_shape(6, 100), Hints(width=6), TURNED, ["SF420"]),
    "transposed by steps": (fixed_shape(6, 100), Hints(steps=100), TURNED, ["SF420"]),
    "transposed and ragged": (RowShape((axis(12), axis(7, 29))), Hints(), TURNED, ["SF420"]),
    "ragged": (RowShape((axis(7, 29), axis(12))), Hints(), FeatureLayout(), []),
    "hidden_size is no reason to turn": (fixed_shape(256, 64), SEED, FeatureLayout(), []),
    "one odd row is no reason to turn": (
        RowShape((axis(20), Axis(270, 271, 1, 0.99))),
        Hints(),
        FeatureLayout(),
        [],
    ),
    "square": (fixed_shape(271, 271), SEED, FeatureLayout(), []),
    "stray axis first": (fixed_shape(1, 20, 271), SEED, FeatureLayout(drop=(0,)), ["SF420"]),
    "stray axis between": (fixed_shape(20, 1, 271), SEED, FeatureLayout(drop=(1,)), ["SF420"]),
    "stray and transposed": (
        fixed_shape(1, 271, 20),
        SEED,
        FeatureLayout(drop=(0,), transposed=True),
        ["SF420", "SF420"],
    ),
    "one step is no stray axis": (fixed_shape(1, 271), SEED, FeatureLayout(), []),
    "ids": (RowShape((axis(20),), (0, 49)), Hints(), FeatureLayout(places=50), ["SF420"]),
    "ids of a vocabulary": (
        RowShape((axis(20),), (0, 49)),
        SEED,
        FeatureLayout(places=271),
        ["SF420"],
    ),
    "flat one-hot in whole numbers": (
        RowShape((axis(5420),), (0, 1)),
        SEED,
        FeatureLayout(width=271),
        ["SF420"],
    ),
    "whole numbers cut as asked": (
        RowShape((axis(20),), (0, 49)),
        Hints(width=5),
        FeatureLayout(width=5),
        ["SF420"],
    ),
}


@pytest.mark.parametrize(("shape", "hints", "layout", "codes"), PLANNED.values(), ids=PLANNED)
def test_planned(shape: RowShape, hints: Hints, layout: FeatureLayout, codes: list[str]) -> None:
    got, found = plan_layout(shape, hints, "x")
    assert got == layout
    assert [each.code for each in found] == codes


REFUSED: dict[str, tuple[RowShape, Hints, str, str]] = {
    "many divisors": (fixed_shape(12), Hints(), "SF421", "6 × 2, 4 × 3, 3 × 4, 2 × 6"),
    "a prime": (fixed_shape(13), Hints(), "SF421", "may be 1 × 13 or 13 × 1"),
    "two sizes of the model": (
        fixed_shape(271 * 256),
        Hints(vocab_size=271, hidden_size=256),
        "SF421",
        "256 × 271, 271 × 256",
    ),
    "ragged": (RowShape((axis(24, 36),)), Hints(), "SF421", "18 × 2, 12 × 3"),
    "a width that does not divide": (fixed_shape(600), Hints(width=7), "SF208", "width is 7"),
    "steps that do not divide": (fixed_shape(600), Hints(steps=7), "SF208", "steps is 7"),
    "both, and another product": (
        fixed_shape(600),
        Hints(steps=10, width=6),
        "SF208",
        "features.steps is 10 and features.width is 6",
    ),
    "a width of no axis": (fixed_shape(100, 6), Hints(width=7), "SF208", "[100, 6]"),
    "another width than trained on": (fixed_shape(25), Hints(trained=6), "SF208", "feature size 6"),
    "three axes": (
        fixed_shape(3, 4, 5),
        Hints(),
        "SF208",
        "[3, 4, 5]; expected [sequence length, feature size]",
    ),
    "ids of a language": (RowShape((axis(20),), (0, 30_000)), Hints(), "SF436", "30,001 elements"),
}


@pytest.mark.parametrize(("shape", "hints", "code", "words"), REFUSED.values(), ids=REFUSED)
def test_refused_rather_than_guessed(shape: RowShape, hints: Hints, code: str, words: str) -> None:
    with pytest.raises(FindingError) as caught:
        plan_layout(shape, hints, "x")
    (found,) = caught.value.findings
    assert found.code == code
    assert words in found.message


@given(
    st.integers(1, 30), st.integers(1, 30), st.sampled_from(["as is", "flat", "turned", "stray"])
)
def test_a_row_comes_back_however_it_lies(steps: int, width: int, form: str) -> None:
    row = np.arange(steps * width, dtype=np.float32).reshape(steps, width)
    saved = {"as is": row, "flat": row.reshape(-1), "turned": row.T, "stray": row[None]}[form]
    if form == "turned" and steps == width:
        return  # no one can tell
    shape = fixed_shape(*saved.shape)
    layout, _ = plan_layout(shape, Hints(steps=steps, width=width), "x")
    np.testing.assert_array_equal(layout.apply(saved), row)
    planned = planned_axes(shape, layout)
    assert (planned[0].size, planned[1].size) == (steps, width)


def test_shapes_are_measured_from_columns() -> None:
    ragged = [{"x": np.zeros((n, 12))} for n in (7, 29, 12)]
    assert str(row_shape(open_table(ragged), "x")) == "[7…29, 12]"
    flat = [{"x": np.zeros(n)} for n in (84, 36)]
    assert row_shape(open_table(flat), "x").axes == (Axis(36, 84, 12, 0.5, 36),)
    ids = open_columns({"x": np.array([[3, 9], [0, 4]])})
    assert row_shape(ids, "x") == RowShape((axis(2),), (0, 9))


def test_rows_to_predict_may_lie_otherwise(tmp_path: Any) -> None:
    rows = feature_rows(60)
    run = surefit.train(data=rows, model="tiny:bert", max_steps=2, output=str(tmp_path / "run"))
    few = feature_rows(8, seed=4)
    expected = surefit.predict(run, few)
    flat = [{"features": row["features"].reshape(-1)} for row in few]
    assert_same_predictions(surefit.predict(run, flat), expected)
    turned = [{"features": row["features"].T} for row in few]
    assert_same_predictions(surefit.predict(run, turned), expected)
    plan = surefit.check(
        data=rows,
        eval_data=[{**r, "features": r["features"].reshape(-1)} for r in few],
        model="tiny:bert",
    )
    assert plan.ok
    assert plan.ledger.eval_rows == 8
    assert "SF420" in {found.code for found in plan.findings}


def reading(*sizes: int) -> Hints:
    """A module that reads vectors of these sizes, and sequences of feature size 4."""
    return Hints(
        layers=(4, *sizes),
        accepts=lambda steps, width: width == 4,
        reads_vectors=lambda size: size in sizes,
    )


VECTOR = FeatureLayout(width=8, vector=True)
FORMS: dict[str, tuple[RowShape, Hints, FeatureLayout]] = {
    "vectors alone work": (fixed_shape(8), Hints(reads_vectors=lambda size: True), VECTOR),
    "sequences alone work": (fixed_shape(8), reading(), FeatureLayout(width=4)),
    "both work": (fixed_shape(8), reading(8), VECTOR),
    "both work on sequences": (fixed_shape(2, 4), reading(4, 8), FeatureLayout()),
    "not to be tried": (fixed_shape(8), Hints(reads_vectors=lambda size: None), VECTOR),
    "one odd row": (
        RowShape((Axis(3, 8, 1, 0.95, 8),)),
        reading(8),
        VECTOR,
    ),
    "ragged": (RowShape((Axis(4, 8, 4, 0.5, 8),)), reading(8), FeatureLayout(width=4)),
    "whole numbers": (RowShape((axis(8),), (0, 9)), reading(8), VECTOR),
    "asked for": (fixed_shape(8), replace(reading(8), width=2), FeatureLayout(width=2)),
}


@pytest.mark.parametrize("name", FORMS)
def test_flat_rows_are_vectors_or_sequences(name: str) -> None:
    shape, hints, expected = FORMS[name]
    assert plan_layout(shape, hints, "x")[0] == expected


def test_vectors_of_another_size() -> None:
    with pytest.raises(FindingError) as caught:
        plan_layout(fixed_shape(8), reading(6), "x")
    assert caught.value.findings[0].code == "SF208"
    assert VECTOR.apply(np.arange(8)).shape == (1, 8)
    with pytest.raises(ValueError, match="6 values; expected a vector of 8"):
        VECTOR.apply(np.arange(6))
