"""The order of rows: every row once, the same for all processes, sought, with little padding."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import surefit
from surefit.batches import cut_steps, order
from surefit.batches.cut_steps import make_section, row_order
from surefit.batches.order import Batches, Order
from surefit.batches.permutation import KeyedPermutation
from surefit.training.schedule import Place, places

LENGTHS, MANY = (
    np.random.default_rng(0).lognormal(4.6, 0.8, count).clip(8, 512).astype(np.int32)
    for count in (4096, 60_000)
)


def micro_batches(batches: Batches, epoch: int) -> set[frozenset[int]]:
    order = batches.epoch(epoch)
    cut = zip(order.micro_starts, order.micro_starts[1:], strict=False)
    return {frozenset(order.rows[a:b].tolist()) for a, b in cut}


def pairs(batches: Batches, epoch: int) -> set[tuple[int, int]]:
    groups = micro_batches(batches, epoch)
    return {(a, b) for group in groups for a in group for b in group if a < b}


@pytest.mark.parametrize("padding_free", [False, True])
def test_long_rows_come_at_any_time(padding_free: bool) -> None:
    batches = Batches(LENGTHS, 0, 4, padding_free=padding_free)
    means = [float(LENGTHS[batches.step_rows(0, step)].mean()) for step in range(1024)]
    assert abs(np.corrcoef(means, np.arange(1024))[0, 1]) < 0.1
    assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.1


def test_padding_free_rows_meet_as_in_a_plain_shuffle() -> None:
    batches = Batches(LENGTHS, 0, 4, padding_free=True)
    first, second = pairs(batches, 0), pairs(batches, 1)
    by_chance = len(first) * 3 / (len(LENGTHS) - 1)
    assert len(first & second) < 3 * by_chance


def test_padding_free_micro_batches_of_a_step_are_even() -> None:
    """Each has about its share of the step's tokens, far nearer than rows as they come."""
    batches = Batches(LENGTHS, 0, 8, grad_accum=4, padding_free=True)
    sizes = batches.positions().reshape(-1, 4)
    shuffled = np.random.default_rng(1).permutation(LENGTHS).reshape(-1, 4, 8).sum(2)
    uneven = [(own.max(1) / own.mean(1)).mean() - 1 for own in (sizes, shuffled)]
    assert uneven[0] < 0.3 * uneven[1]


def test_processes_share_a_step_by_cost() -> None:
    lengths = np.array([64, 1, 1, 1, 32, 30, 2, 1] * 8, np.int32)
    batches = Batches(lengths, seed=0, batch_size=1, grad_accum=4, num_processes=2)
    for step in range(batches.steps_per_epoch):
        shares = [batches.share(0, step, process) for process in range(2)]
        rows = [row for share in shares for micro in share.micro_batches for row in micro.tolist()]
        assert sorted(rows) == sorted(batches.step_rows(0, step).tolist())
        costs = sorted(sum(int(lengths[m].sum()) for m in share.micro_batches) for share in shares)
        assert costs[1] - costs[0] <= lengths[batches.step_rows(0, step)].max()
    assert 0 < batches.imbalance() < 0.35
    assert replace(batches, num_processes=1).imbalance() == 0


@pytest.mark.parametrize("order", ["shuffle", "windowed", "grouped"])
@pytest.mark.parametrize("blocks", [1, 8])
def test_no_micro_batch_of_one_row_where_the_model_needs_two(order: Order, blocks: int) -> None:
    for num_rows, size, accum in product((2, 3, 8, 9, 33, 129, 257), (2, 3, 4), (1, 2)):
        lengths = LENGTHS[:num_rows]
        batches = Batches(lengths, 0, size, accum, order=order, block_rows=blocks, min_rows=2)
        cut = [
            part
            for step in range(batches.steps_per_epoch)
            for part in batches.micro_batches(0, step)
        ]
        assert min(map(len, cut)) >= 2
        assert max(map(len, cut)) <= size + 1
        assert sum(len(part) > size for part in cut) <= 1 + num_rows // (128 * size)
        assert sorted(np.concatenate(cut).tolist()) == [*range(num_rows)]


SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=300)
ORDERS = st.sampled_from([None, "shuffle", "windowed", "grouped"])
BLOCKS = st.sampled_from([1, 8])


def ordered(lengths: list[int], *sizes: int, **options: Any) -> Batches:
    return Batches(np.array(lengths, np.int32), 3, *sizes, **options)


@given(SIZES, ORDERS, st.sampled_from([None, 20, 64, 150]), st.booleans(), BLOCKS, st.data())
def test_every_row_once_per_epoch_in_as_many_steps_within_the_budget(
    lengths: list[int],
    order: Any,
    max_tokens: int | None,
    padding_free: bool,
    blocks: int,
    data: st.DataObject,
) -> None:
    options: dict[str, Any] = {"order": order, "padding_free": padding_free, "block_rows": blocks}
    batches = ordered(lengths, 4, 2, 1, max_tokens, **options)
    for epoch in (0, data.draw(st.integers(1, 10**18))):
        steps = [batches.micro_batches(epoch, step) for step in range(batches.steps_per_epoch)]
        assert all(len(part) for step in steps for part in step)
        rows = [row for step in steps for part in step for row in part.tolist()]
        assert sorted(rows) == list(range(len(lengths)))
        for part in (batches.lengths[part] for step in steps for part in step):
            computed = part.sum() if padding_free else len(part) * part.max()
            assert len(part) == 1 or computed <= (max_tokens or 4 * 60)
        examined = batches.epoch(epoch)
        parts = {tuple(part.tolist()) for step in steps for part in step}
        found = [part for s in range(len(steps)) for part in examined.micro_batches(s)]
        assert {tuple(part.tolist()) for part in found} == parts


@given(
    SIZES, st.sampled_from([(12, 1), (6, 2), (1, 12)]), ORDERS, st.sampled_from([None, 60]), BLOCKS
)
def test_processes_share_the_same_steps(
    lengths: list[int], shape: tuple[int, int], order: Any, max_tokens: int | None, blocks: int
) -> None:
    options: dict[str, Any] = {"order": order, "max_tokens": max_tokens, "block_rows": blocks}
    alone, shared = (ordered(lengths, 2, *s, **options) for s in ((12, 1), shape))
    for step in range(alone.steps_per_epoch):
        shares = [shared.share(1, step, process) for process in range(shape[1])]
        taken = [int(row) for s in shares if s.weight for part in s.micro_batches for row in part]
        assert sorted(taken) == sorted(alone.step_rows(1, step).tolist())


@pytest.mark.parametrize("blocks", [1, 64])
@pytest.mark.parametrize("max_tokens", [None, 2000])
def test_a_late_step_is_sought(blocks: int, max_tokens: int | None) -> None:
    batches = Batches(LENGTHS, 0, 8, max_tokens=max_tokens, block_rows=blocks)
    before, per_epoch = make_section.cache_info().misses, batches.steps_per_epoch
    place = next(places(batches, 900_000 * per_epoch + 200, 10**18))
    assert place == Place(900_000 * per_epoch + 201, 900_000, 200, False)
    assert len(batches.share(place.epoch, place.index).micro_batches)
    assert make_section.cache_info().misses - before == 1


@given(st.integers(1, 3000), st.integers(0, 9), BLOCKS, st.data())
def test_a_row_is_found_at_its_place(
    size: int, epoch: int, blocks: int, data: st.DataObject
) -> None:
    rows = row_order(Batches(np.ones(size, np.int32), 0, 1, block_rows=blocks), epoch)
    assert sorted(rows.rows(0, size).tolist()) == list(range(size))
    place = data.draw(st.integers(0, size - 1))
    assert rows.place(int(rows.rows(place, place + 1)[0])) == place


def test_keyed_permutations_of_few_numbers_are_all_drawn_alike() -> None:
    drawn = [tuple(KeyedPermutation(4, (key,))(np.arange(4)).tolist()) for key in range(2400)]
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 24
    assert (np.square(counts - 100) / 100).sum() < 60  # chi-square with 23 degrees of freedom


def test_the_rows_of_a_window_lie_in_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_steps, "WINDOW_BLOCKS", 64)
    monkeypatch.setattr(cut_steps, "WINDOW_STEPS", 1)
    batches = Batches(LENGTHS, 0, 8, block_rows=16)  # windows of 1024 rows
    blocks = {row // 16 for row in row_order(batches, 0).rows(1024, 2048).tolist()}
    assert len(blocks) <= 2 * 65  # blocks begin at any row


def test_a_block_is_small_where_steps_are_large() -> None:
    """A step draws from four times as many blocks as it has rows, however large it is."""
    lengths = np.broadcast_to(np.int32(50), 40_000_000)  # takes no memory
    for processes in (1, 8, 64, 512, 8192):
        batches = Batches(lengths, 0, 8, num_processes=processes, block_rows=256)
        rows = row_order(batches, 0)
        window = min(rows.window_rows, rows.num_rows)
        assert window // rows.block_rows >= 4 * 8 * processes * 0.99


@pytest.mark.parametrize("max_tokens", [None, 2048])
def test_figures_from_some_steps_are_near_those_of_all(
    max_tokens: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"max_tokens": max_tokens}
    whole = Batches(MANY, 0, 8, 4, **options)
    every = [whole.num_micro_batches(), whole.padding_share(), whole.total_positions()]
    longest = whole.longest()
    monkeypatch.setattr(order, "EXAMINED_ROWS", 10_000)
    monkeypatch.setattr(order, "SAMPLED_ROWS", 20_000)
    some = Batches(MANY, 0, 8, 4, **options)
    assert some.is_sampled
    assert len(some.epoch(0).rows) < len(MANY)
    found = [some.num_micro_batches(), some.padding_share(), some.total_positions()]
    assert found == pytest.approx(every, rel=0.03)
    assert some.longest()[1] == longest[1]


def test_steps_of_tokens_are_even_and_leave_no_process_waiting() -> None:
    batches = Batches(MANY, 0, 8, 1, 16, max_tokens=2048, padding_free=True)
    steps = range(batches.steps_per_epoch)
    tokens = [int(MANY[batches.step_rows(0, step)].sum()) for step in steps]
    assert max(tokens) <= 16 * 2048
    assert min(tokens) > 0.9 * max(tokens)
    assert batches.imbalance() < 0.02


@pytest.mark.parametrize("more", [{}, {"max_tokens": 8}])
def test_planning_does_not_depend_on_the_number_of_epochs(more: dict[str, Any]) -> None:
    from torch import nn

    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    rows = [{"features": [i % 2 + 0.1, i / 9, 1.0], "label": "ab"[i % 2]} for i in range(40)]
    before = order._examine.cache_info().misses
    plan = surefit.check(data=rows, model=model, epochs=20_000, batch_size=4, lr=0.1, **more)
    assert plan.job is not None, plan.findings
    assert plan.job.num_steps == 20_000 * plan.job.batches.steps_per_epoch
    assert order._examine.cache_info().misses - before < 1_000
