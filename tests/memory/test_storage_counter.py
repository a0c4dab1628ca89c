"""Cached shapes of operations on the meta device are those that torch infers."""

from __future__ import annotations

from typing import Any

import torch

from surefit.memory.meta_autocast import meta_autocast
from surefit.memory.storage_counter import LiveBytes, ShapeCache

aten = torch.ops.aten


def on_meta(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta")


def test_a_change_in_place_gives_back_the_argument() -> None:
    cache = ShapeCache()
    for _ in range(2):
        out = on_meta(3, 4)
        arguments = (out, on_meta(3, 2), on_meta(2, 4))
        assert cache(aten.addmm_.default, arguments, {}) is out
        assert out.shape == (3, 4)


def test_a_change_of_shape_is_made_each_time() -> None:
    cache = ShapeCache()
    for _ in range(2):
        tensor = on_meta(6)
        assert cache(aten.resize_.default, (tensor, [2, 3]), {}).shape == (2, 3)
        assert tensor.shape == (2, 3)


def test_views_stay_views() -> None:
    cache = ShapeCache()
    for _ in range(2):
        whole = on_meta(4, 4)
        part: Any = cache(aten.slice.Tensor, (whole, 0, 0, 2), {})
        assert part.untyped_storage()._cdata == whole.untyped_storage()._cdata


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


def test_a_models_own_autocast_runs_on_the_meta_device() -> None:
    autocast = torch.autocast
    with meta_autocast(None), torch.autocast("meta", enabled=False):
        assert (on_meta(2, 2) @ on_meta(2, 2)).dtype is torch.float32
    assert torch.autocast is autocast
