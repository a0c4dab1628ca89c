"""Rows drawn from several sources: as often as asked, in turn, and sought like any other order."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from surefit.batches.mixing import Drawn
from surefit.batches.order import Batches

LENGTHS = np.random.default_rng(0).integers(1, 60, 100).astype(np.int32)
SOURCES = (Drawn(0, 60, 20), Drawn(60, 30, 75), Drawn(90, 10, 10))


def drawn_in(batches: Batches, epoch: int) -> Counter[int]:
    steps = (batches.step_rows(epoch, step) for step in range(batches.steps_per_epoch))
    return Counter(int(row) for rows in steps for row in rows)


SHAPES = ({}, {"max_tokens": 200}, {"block_rows": 8}, {"order": "grouped"}, {"padding_free": True})


@pytest.mark.parametrize("shape", SHAPES)
def test_each_epoch_draws_as_many_rows_of_each_source_as_asked(shape: dict[str, object]) -> None:
    batches = Batches(LENGTHS, 7, 8, sources=SOURCES, **shape)  # type: ignore[arg-type]
    assert batches.num_rows == 105
    for epoch in range(4):
        counts = drawn_in(batches, epoch)
        for source in SOURCES:
            own = [counts[row] for row in range(source.first, source.first + source.num_rows)]
            assert sum(own) == source.draws
            assert max(own) - min(own) <= 1


def test_no_row_comes_again_before_all_rows_of_its_source_have_come() -> None:
    batches = Batches(LENGTHS, 7, 8, sources=SOURCES)
    three = sum((drawn_in(batches, epoch) for epoch in range(3)), Counter[int]())
    assert {three[row] for row in range(60)} == {1}
    assert drawn_in(batches, 0).keys() != drawn_in(batches, 1).keys()
    two = drawn_in(batches, 0) + drawn_in(batches, 1)
    assert {two[row] for row in range(60, 90)} == {5}


def test_the_order_is_a_pure_function_of_seed_and_epoch() -> None:
    first, again, other = (Batches(LENGTHS, seed, 8, sources=SOURCES) for seed in (7, 7, 8))
    assert [*first.step_rows(5, 3)] == [*again.step_rows(5, 3)] != [*other.step_rows(5, 3)]
    assert sorted(first.step_rows(5, 3)) == sorted(
        row for process in range(2) for part in
        Batches(LENGTHS, 7, 4, num_processes=2, sources=SOURCES).share(5, 3, process).micro_batches
        for row in part
    )  # fmt: skip


def test_sources_that_come_once_leave_the_order_as_it_is() -> None:
    plain, mixed = Batches(LENGTHS, 7, 8), Batches(LENGTHS, 7, 8, sources=())
    assert [*plain.step_rows(1, 2)] == [*mixed.step_rows(1, 2)]
