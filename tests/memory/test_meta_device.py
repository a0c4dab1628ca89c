"""Live bytes and work of operations on the meta device."""

from __future__ import annotations

import torch

from surefit.memory.meta_device import LARGEST_ON_HEAP, MOST_REPEATS, LiveBytes

aten = torch.ops.aten


def on_meta(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta")


def test_the_heap_counts_what_is_allocated_and_not_only_what_is_live() -> None:
    count, size = LiveBytes(), 8 * 8 * 4
    with count:
        for _ in range(3):
            on_meta(8, 8)
        assert (count.live, count.peak, count.heap_bytes) == (0, size, 3 * size)
        for _ in range(100):  # a loop over time steps leaves no more holes
            on_meta(8, 8)
        assert count.heap_bytes == MOST_REPEATS * size
        large = on_meta(LARGEST_ON_HEAP)
    assert count.heap_bytes == MOST_REPEATS * size
    assert count.live == large.nbytes


def test_a_repeated_operation_counts_as_much_as_the_first() -> None:
    counts = []
    for times in (1, 2):
        count = LiveBytes()
        with count:
            kept = [on_meta(8, 8) @ on_meta(8, 8) for _ in range(times)]
        assert len(kept) == times
        counts.append((count.live, count.flops))
    assert counts[1] == (2 * counts[0][0], 2 * counts[0][1])


def test_products_by_expert_are_traced_in_float32() -> None:
    shapes = []
    for device in ("cpu", "meta"):
        rows = torch.ones(6, 8, device=device, requires_grad=True)
        experts = torch.ones(2, 8, 4, device=device, requires_grad=True)
        offsets = torch.tensor([2, 6], dtype=torch.int32)
        with LiveBytes():
            made = torch.nn.functional.grouped_mm(rows, experts, offs=offsets.to(device))
            made.square().sum().backward()
        assert rows.grad is not None
        assert experts.grad is not None
        shapes.append((made.shape, rows.grad.shape, experts.grad.shape))
    assert shapes[0] == shapes[1] == ((6, 4), (6, 8), (2, 8, 4))


def test_a_mask_that_is_moved_to_the_cpu_is_traced() -> None:
    with LiveBytes():
        moved = on_meta(3).bool().to("cpu")
        assert (torch.ones(2, 3, dtype=torch.bool) & moved).shape == (2, 3)
