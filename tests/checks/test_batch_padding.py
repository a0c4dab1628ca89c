"""Much padding is reported with micro-batches that make the same steps with less."""

from __future__ import annotations

import numpy as np
import pytest

from surefit.batches.order import Batches
from surefit.checks.module_checks import check_padding

RAGGED = np.random.default_rng(0).lognormal(4, 0.8, 600).clip(2, 512).astype(np.int32)


def test_padding_is_reported_with_the_same_steps_in_smaller_micro_batches() -> None:
    batches = Batches(RAGGED, 0, 8)
    (found,) = check_padding(batches)
    assert "batch_size=2 and grad_accum=4" in found.fix
    smaller = Batches(RAGGED, 0, 2, 4)
    assert f"{smaller.padding_share():.0%} padding" in found.fix
    assert smaller.padding_share() < 0.6 * batches.padding_share()
    for step in range(batches.steps_per_epoch):
        assert {*batches.step_rows(0, step)} == {*smaller.step_rows(0, step)}


@pytest.mark.parametrize(
    "batches",
    [
        Batches(RAGGED, 0, 8, padding_free=True),
        Batches(np.full(600, 40, np.int32), 0, 8),
        Batches(RAGGED, 0, 1, 8),
        Batches(RAGGED, 0, 8, order="grouped"),
    ],
    ids=["padding-free", "equal lengths", "single rows", "grouped"],
)
def test_nothing_is_said_where_nothing_can_be_gained(batches: Batches) -> None:
    assert not list(check_padding(batches))
