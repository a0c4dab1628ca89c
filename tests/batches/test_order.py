"""Batches by length have little padding and stay random."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from surefit.batches.order import Batches

LENGTHS = np.random.default_rng(0).lognormal(4.6, 0.8, 4096).clip(8, 512).astype(np.int32)


def micro_batches(batches: Batches, epoch: int) -> set[frozenset[int]]:
    order = batches.epoch(epoch)
    cut = zip(order.micro_starts, order.micro_starts[1:], strict=False)
    return {frozenset(order.rows[a:b].tolist()) for a, b in cut}


def pairs(batches: Batches, epoch: int) -> set[tuple[int, int]]:
    groups = micro_batches(batches, epoch)
    return {(a, b) for group in groups for a in group for b in group if a < b}


def test_grouped_batches_have_under_three_percent_padding() -> None:
    batches = Batches(LENGTHS, 0, 4, order="grouped")
    assert 0 <= batches.padding_share() < 0.03
    shuffled = Batches(LENGTHS, 0, 4, order="shuffle")
    assert shuffled.padding_share() > 0.3
    assert abs(shuffled.padding_share() - shuffled.random_padding_share()) < 0.02


def test_padded_micro_batches_of_a_step_are_rows_of_similar_length() -> None:
    batches = Batches(LENGTHS, 0, 8, grad_accum=4)
    assert batches.padding_share() < 0.6 * batches.random_padding_share()


@pytest.mark.parametrize("padding_free", [False, True])
def test_long_rows_come_at_any_time(padding_free: bool) -> None:
    batches = Batches(LENGTHS, 0, 4, padding_free=padding_free)
    means = [float(LENGTHS[batches.step_rows(0, step)].mean()) for step in range(1024)]
    assert abs(np.corrcoef(means, np.arange(1024))[0, 1]) < 0.1
    assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.1


@pytest.mark.parametrize("padding_free", [False, True])
def test_epochs_have_other_batches(padding_free: bool) -> None:
    batches = Batches(LENGTHS, 0, 4, padding_free=padding_free)
    again = micro_batches(batches, 0) & micro_batches(batches, 1)
    assert len(again) < 0.02 * batches.num_micro_batches()


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
    for step in range(batches.num_steps(0)):
        shares = [batches.share(0, step, process) for process in range(2)]
        rows = [row for share in shares for micro in share.micro_batches for row in micro.tolist()]
        assert sorted(rows) == sorted(batches.step_rows(0, step).tolist())
        costs = sorted(sum(int(lengths[m].sum()) for m in share.micro_batches) for share in shares)
        assert costs[1] - costs[0] <= lengths[batches.step_rows(0, step)].max()
    assert 0 < batches.imbalance() < 0.35
    assert replace(batches, num_processes=1).imbalance() == 0
