"""Groups with one target each, and targets that follow their past, in a split at random."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np
import pytest

from surefit.checks.split_advice import advise_split
from surefit.data.python.rows_to_arrow import open_rows

DAYS = [str(date(2024, 1, 1) + timedelta(days=n)) for n in range(120)]
WALK = np.cumsum(np.random.default_rng(0).normal(size=120)).tolist()
NOISE = np.random.default_rng(1).normal(size=120).tolist()
CONSTANT = [n // 6 * 7 % 3 for n in range(120)]
DRAWN = np.random.default_rng(2).integers(0, 3, 120).tolist()


def advised(label: Sequence[Any], **column: Sequence[Any]) -> list[tuple[str, object]]:
    """Codes and columns of what is found, with one column beside the label."""
    (name, values), *_ = column.items()
    rows = [{name: value, "y": target} for value, target in zip(values, label, strict=True)]
    return [(found.code, found.where["column"]) for found in advise_split(open_rows(rows), "y")]


@pytest.mark.parametrize(
    "label", [CONSTANT, [f"k{n}" for n in CONSTANT], [n / 7 for n in CONSTANT]]
)
def test_groups_with_one_target_each(label: list[Any]) -> None:
    assert advised(label, patient_id=[n // 6 for n in range(120)]) == [("SF189", "patient_id")]
    assert advised(label, patient_id=[f"p{n // 6}" for n in range(120)]) != []


@pytest.mark.parametrize(
    ("label", "column"),
    [
        (DRAWN, {"patient": [n // 6 for n in range(120)]}),  # several targets
        (CONSTANT, {"patient": [*range(120)]}),  # no value recurs
        (CONSTANT, {"colour": [n // 6 for n in range(120)]}),  # not named for groups
        ([0] * 119 + [1], {"patient": [n // 6 for n in range(120)]}),  # constant by chance
    ],
)
def test_groups_without_evidence(label: list[Any], column: dict[str, list[Any]]) -> None:
    assert advised(label, **column) == []


def test_target_that_follows_its_past() -> None:
    assert advised(WALK, day=DAYS) == [("SF190", "day")]
    order = np.random.default_rng(3).permutation(120)
    assert advised([WALK[n] for n in order], day=[DAYS[n] for n in order]) == [("SF190", "day")]


@pytest.mark.parametrize(
    ("label", "column"),
    [
        (NOISE, {"day": DAYS}),
        (WALK, {"size": NOISE}),
        (WALK, {"clock": [f"{n % 24:02d}:{n % 60:02d}" for n in range(120)]}),
        (WALK, {"day": [*DAYS[:-1], ""]}),
        (WALK, {"day": [DAYS[n // 4] for n in range(120)]}),  # several rows of one day
        ([str(n) for n in DRAWN], {"day": DAYS}),
    ],
)
def test_time_without_evidence(label: list[Any], column: dict[str, list[Any]]) -> None:
    assert advised(label, **column) == []
