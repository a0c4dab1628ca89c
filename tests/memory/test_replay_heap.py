"""The allocations of a step, replayed on the system's malloc."""

from __future__ import annotations

import resource

import pytest
import torch

from surefit.memory import replay_heap
from surefit.memory.replay_heap import NODE_FREED, NODE_MADE, Allocations, replay
from surefit.memory.storage_counter import LiveBytes

MB = 2**20


def replayed(*events: int, held: tuple[int, ...] = (), state: tuple[int, ...] = ()) -> int:
    peak = replay(Allocations(held, state, events))
    assert peak is not None
    return peak


def test_tensors_that_are_alive_together_add_up() -> None:
    assert replayed(100 * MB, 60 * MB) == pytest.approx(160 * MB, rel=0.02)
    assert replayed(100 * MB, -1, 60 * MB) == pytest.approx(100 * MB, rel=0.02)


def test_weights_stay_and_optimizer_state_comes_with_the_first_step() -> None:
    peak = replayed(50 * MB, held=(80 * MB,), state=(40 * MB, 40 * MB))
    assert peak == pytest.approx(210 * MB, rel=0.02)


def test_freed_blocks_leave_holes() -> None:
    """Each temporary is freed beside a tensor that stays; the next temporary is as large.

    How many holes is chance (the heap's address is random): 24 to 64 % more than what is alive.
    """
    kept_and_temporary = [event for n in range(40) for event in (MB, MB, -2 * n - 2)]
    assert replayed(*kept_and_temporary) > 1.1 * 41 * MB


def test_small_objects_that_outlive_a_tensor_keep_its_hole_from_being_used() -> None:
    """Nodes of the graph settle beside freed tensors, as in a forward pass that saves nothing."""
    steps = [event for n in range(40) for event in (MB, -n - 1)]
    nodes = [event for n in range(40) for event in (MB, NODE_MADE, -n - 1)]
    assert replayed(*nodes, *[NODE_FREED] * 40) > replayed(*steps)


def test_the_replay_is_not_bound_by_the_limit_of_the_run() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (8_000 * MB, before[1]))
    try:
        assert replayed(*[100 * MB] * 100) == pytest.approx(10_000 * MB, rel=0.02)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def test_a_system_that_cannot_replay_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_heap.sys, "executable", "/nowhere/python")
    assert replay(Allocations((), (), (MB,))) is None


def test_events_number_the_allocations_of_the_step() -> None:
    count = LiveBytes()
    kept = torch.empty(10, device="meta")
    count.add(kept)
    count.begin_step()
    with count, torch.no_grad():
        first = kept + 1
        second = first * 2
        del first
        third = second[:0] + 1  # no bytes, hence no allocation
    del kept, third
    assert count.events == [40, 40, -1]
    del second
    assert count.events == [40, 40, -1, -2]


def test_events_have_the_nodes_of_the_graph() -> None:
    weight = torch.ones(10, device="meta", requires_grad=True)
    count = LiveBytes()
    with count:
        total = (weight * 2).exp().sum()
        made = count.events.count(NODE_MADE)
        total.backward()
    assert made >= 3
    assert NODE_FREED not in count.events[: count.events.index(NODE_MADE) + made]
    assert count.events.count(NODE_FREED) >= 2  # the sum's node runs no operation
