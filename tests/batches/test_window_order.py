"""Large data is ordered in windows, by the laws of the order; only a window is in memory."""

from __future__ import annotations

import hashlib
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefit.batches.keyed_permutation import KeyedPermutation
from surefit.batches.order import Batches
from surefit.batches.window_order import Windows, find_edges, find_window, make_window
from surefit.training.schedule import places

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=400)
ORDERS = st.sampled_from([None, "shuffle", "windowed", "grouped"])
RAGGED = np.random.default_rng(0).lognormal(4.6, 0.8, 60_000).clip(8, 512).astype(np.int32)


def in_windows(lengths: Any, *sizes: int, seed: int = 1, **options: Any) -> Batches:
    array = np.array(lengths, np.int32)
    return Batches(array, seed, *sizes, windows=Windows(array, 32, 8), **options)


def steps_of(batches: Batches, epoch: int) -> list[list[int]]:
    return [batches.step_rows(epoch, step).tolist() for step in range(batches.num_steps(epoch))]


@given(st.integers(1, 3000), st.integers(0, 9))
def test_a_keyed_permutation_has_every_number_once(size: int, key: int) -> None:
    places = KeyedPermutation(size, (key,))
    permuted = places(np.arange(size))
    assert sorted(permuted.tolist()) == list(range(size))
    assert places.inverse(permuted).tolist() == list(range(size))


def test_keyed_permutations_of_few_numbers_are_all_drawn_alike() -> None:
    drawn = [tuple(KeyedPermutation(4, (key,))(np.arange(4)).tolist()) for key in range(2400)]
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 24
    assert (np.square(counts - 100) / 100).sum() < 60  # chi-square with 23 degrees of freedom


@given(LENGTHS, st.integers(1, 9), ORDERS, st.sampled_from([None, 70, 300]), st.booleans())
def test_every_row_once_per_epoch_in_steps_with_rows(
    lengths: list[int], accum: int, order: Any, max_tokens: int | None, padding_free: bool
) -> None:
    options: dict[str, Any] = {"order": order, "padding_free": padding_free}
    batches = in_windows(lengths, 2, accum, max_tokens=max_tokens, **options)
    for epoch in (0, 1):
        steps = steps_of(batches, epoch)
        assert all(steps)
        assert sorted(row for step in steps for row in step) == list(range(len(lengths)))
        for step, rows in enumerate(steps):
            micro = batches.micro_batches(epoch, step)
            assert sorted(np.concatenate(micro).tolist()) == sorted(rows)
            sizes = [batches.lengths[part] for part in micro]
            if max_tokens is None:
                assert all(len(part) <= 2 for part in micro)
            elif padding_free:
                assert all(part.sum() <= max_tokens for part in sizes)
            else:
                assert all(len(part) * part.max() <= max_tokens for part in sizes)


@given(LENGTHS, st.sampled_from([(12, 1), (6, 2), (1, 12)]), ORDERS, st.sampled_from([None, 60]))
def test_processes_share_the_same_steps(
    lengths: list[int], shape: tuple[int, int], order: Any, max_tokens: int | None
) -> None:
    options: dict[str, Any] = {"order": order, "max_tokens": max_tokens}
    alone, shared = (in_windows(lengths, 2, *s, **options) for s in ((12, 1), shape))
    for step, rows in enumerate(steps_of(alone, 1)):
        shares = [shared.share(1, step, process) for process in range(shape[1])]
        taken = [int(row) for s in shares if s.weight for part in s.micro_batches for row in part]
        assert sorted(taken) == sorted(rows)


@given(LENGTHS, st.data(), ORDERS, st.sampled_from([None, 90]))
def test_seeking_equals_walking(
    lengths: list[int], data: st.DataObject, order: Any, max_tokens: int | None
) -> None:
    walked = in_windows(lengths, 3, max_tokens=max_tokens, order=order)
    epochs = [steps_of(walked, epoch) for epoch in range(2)]
    total = sum(map(len, epochs))
    after = data.draw(st.integers(0, total - 1))
    fresh = in_windows(lengths, 3, max_tokens=max_tokens, order=order)
    place = next(places(fresh, after, total))
    assert (place.epoch, place.index) == divmod(after, len(epochs[0]))
    assert fresh.step_rows(place.epoch, place.index).tolist() == epochs[place.epoch][place.index]


@given(LENGTHS, st.data())
def test_the_window_of_a_row_is_found(lengths: list[int], data: st.DataObject) -> None:
    batches = in_windows(lengths, 2)
    row = data.draw(st.integers(0, len(lengths) - 1))
    assert row in make_window(batches, 1, find_window(batches, 1, row)).rows


def test_epochs_and_seeds_have_other_windows() -> None:
    firsts = [
        frozenset(make_window(in_windows(RAGGED, 2, seed=seed), epoch, 0).rows.tolist())
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len({*firsts}) == 4


@pytest.mark.parametrize("max_tokens", [None, 2048])
def test_figures_from_some_steps_are_near_those_of_all(max_tokens: int | None) -> None:
    options: dict[str, Any] = {"max_tokens": max_tokens}
    some = Batches(RAGGED, 0, 8, 4, windows=Windows(RAGGED, 4096, 16), **options)
    every = [rows for step in range(some.num_steps(0)) for rows in some.micro_batches(0, step)]
    shapes = np.array([(len(rows), int(RAGGED[rows].max())) for rows in every])
    padded = shapes.prod(1)
    assert some.num_micro_batches() == pytest.approx(len(every), rel=0 if not max_tokens else 0.02)
    assert some.padding_share() == pytest.approx(1 - RAGGED.sum() / padded.sum(), abs=0.02)
    assert some.total_positions() == pytest.approx(padded.sum(), rel=0.02)
    longest = some.longest()
    assert longest[0] * longest[1] == padded.max()
    assert len(some.epoch(0).rows) < len(RAGGED)


def test_steps_of_tokens_are_even_and_leave_no_process_waiting() -> None:
    batches = Batches(
        RAGGED, 0, 8, 1, 16, max_tokens=2048, padding_free=True,
        windows=Windows(RAGGED, 4096, 16),
    )  # fmt: skip
    tokens = [int(RAGGED[rows].sum()) for rows in map(np.array, steps_of(batches, 0))]
    assert max(tokens) <= 16 * 2048
    assert min(tokens) > 0.9 * max(tokens)
    assert batches.imbalance() < 0.02


@pytest.mark.parametrize(
    ("options", "digest"),
    [
        ({"grad_accum": 4}, "9a94eea39437"),
        ({"padding_free": True, "grad_accum": 4}, "10ec79a402d8"),
        ({"order": "grouped"}, "796b504eda54"),
        ({"max_tokens": 2048, "padding_free": True, "num_processes": 3}, "b6fb2b7efb59"),
        ({"max_tokens": 2048, "num_processes": 3}, "36e52537fb2b"),
    ],
)
def test_few_rows_have_the_order_they_always_had(options: dict[str, Any], digest: str) -> None:
    """Runs that were begun before there were windows resume with the same rows."""
    found = hashlib.sha256()
    batches = Batches(RAGGED[:3000], 5, 8, **options)
    for step in range(batches.num_steps(2)):
        for process in range(batches.num_processes):
            for rows in batches.share(2, step, process).micro_batches:
                found.update(rows.astype(np.int64).tobytes() + b"|")
    assert found.hexdigest()[:12] == digest


def test_a_shard_is_small_where_steps_are_large() -> None:
    """A step draws from four times as many shards as it has rows, however large it is."""
    lengths = np.broadcast_to(np.int32(50), 40_000_000)  # takes no memory
    batches = Batches(lengths, 0, 8, windows=Windows(lengths, 1 << 20, 256))
    for processes in (1, 8, 64, 512, 8192):
        edges = find_edges(replace(batches, num_processes=processes))
        window = edges.first_row(1)
        assert window // edges.shard_rows >= 4 * 8 * processes * 0.99


def test_a_window_takes_sixteen_bytes_a_row_whatever_the_number_of_rows() -> None:
    peaks = []
    for num_rows in (4_000_000, 400_000_000):
        lengths = np.broadcast_to(np.int32(50), num_rows)
        batches = Batches(lengths, 0, 8, 4, windows=Windows(lengths, 1 << 18, 256))
        tracemalloc.start()
        batches.step_rows(0, batches.num_steps(0) // 2)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) <= 16 * (1 << 18)
    assert peaks[1] == pytest.approx(peaks[0], rel=0.1)
