"""Profiles: what the values of a column are, and rules that are predicates on them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from surefit.checks.column_rules import check_blanks
from surefit.data import profile
from surefit.data.open_data import open_table
from surefit.data.profile import Profile
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedInput, Settings, TablePart


def of(values: list[Any], chunks: int = 3) -> Profile:
    """The profile of a column in several chunks."""
    whole = pa.array(values)
    size = -(-len(values) // chunks)
    return Profile(pa.chunked_array([whole[at : at + size] for at in range(0, len(values), size)]))


def test_facts_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "SLICE_ROWS", 2)
    texts = of(["a", " ", None, "b ", "a", "ccc", "b"])
    assert texts.blanks().tolist() == [1, 2]
    assert texts.counts == {"a": 2, " ": 1, "b ": 1, "ccc": 1, "b": 1}
    assert texts.rows_with("b", 5) == [3, 6]
    assert sorted(texts.lengths) == [1, 1, 1, 1, 2, 3]
    numbers = of([1.5, float("nan"), None, 2.0, 1.5])
    assert numbers.blanks().tolist() == [1, 2]
    assert numbers.counts == {1.5: 2, 2.0: 1}
    assert numbers.is_continuous
    assert of([[1, 2], [], None, [3]]).lengths.tolist() == [2, 1]


def test_many_different_values_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "MAX_DISTINCT", 4)
    many = of(list(range(10)))
    assert (many.counts, many.num_distinct, many.range) == (None, 10, (0, 9))


def test_a_sample_is_spread_over_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "SPREAD_ROWS", 4)
    assert [rows.tolist() for rows, _ in of(list(range(10))).spread()] == [[0, 3], [6], [9]]


def test_each_fact_is_found_once() -> None:
    table = open_table([{"a": 1}, {"a": 2}])
    assert table.profile("a") is table.profile("a")
    assert table.profile("a").first is table.profile("a").first


@pytest.mark.parametrize("label", [None, "NA", 3.5])
def test_blanks_of_rows_without_a_target_are_not_reported(label: Any) -> None:
    rows = [{"age": str(n), "price": str(n * 0.5)} for n in range(9)]
    rows.append({"age": None, "price": label and str(label)})
    encoder = Encoder(
        "regression",
        {"label": "price"},
        settings=Settings(missing={"price": ("na",)}),
        input=FittedInput(columns=(TablePart("age", "number"),)),
    )
    found = [*check_blanks([open_table(rows)], encoder)]
    assert [each.code for each in found] == (["SF267"] if label == 3.5 else [])
