"""Trace a training step or an evaluation batch on the meta device: its memory and its work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surefit.memory.held_memory import (
    ALONE,
    GATHERS,
    GRADIENTS,
    ReplicatedModel,
    Sharing,
    WholeModel,
)
from surefit.memory.replay_heap import Allocations, replay
from surefit.models.call import Call, compute_losses
from surefit.tasks.task_spec import Loss

if TYPE_CHECKING:
    import torch
    from torch import nn

    from surefit.memory.storage_counter import LiveBytes


@dataclass(frozen=True)
class Traced:
    """Peak bytes of live tensors in a pass, what they were, and the work of the pass."""

    peak: int
    weights: int
    gradients: int
    optimizer: int
    flops: int
    moved_bytes: int
    num_ops: int
    heap_peak: int | None = None
    """Peak bytes of malloc's memory, with its holes; None if the system cannot replay them."""
    largest_on_heap: int = 0
    """Bytes of the largest tensor of the step that may leave a hole."""
    gathers: int = 0
    """Gathered weights and buffers of collectives, of a model divided over processes."""
    all_gather_bytes: int = 0
    """Bytes that a process sends in a micro-batch to gather weights."""
    reduce_scatter_bytes: int = 0
    """Bytes that a process sends in a step to sum the gradients of a divided model."""

    @property
    def activations(self) -> int:
        """The rest of the peak: activations, the batch, temporary tensors."""
        held = self.weights + self.gradients + self.optimizer + self.gathers
        return self.peak - held


def trace_training(
    module: nn.Module,
    call: Call,
    loss: Loss,
    batch: Mapping[str, Any],
    *,
    accumulates: bool = False,
    dtype: torch.dtype | None = None,
    sharing: Sharing = ALONE,
) -> Traced:
    """Trace forward and backward of a later step, when the optimizer state exists.

    `module` is on the meta device. With `accumulates`, the gradients of an earlier micro-batch
    exist already. `dtype` is the lower precision of mixed precision. Of several processes, it is
    the trace of one, on the last micro-batch of the step.
    """
    import torch

    from surefit.memory.meta_autocast import meta_autocast
    from surefit.memory.storage_counter import LiveBytes, fused_attention

    count = LiveBytes()
    model = _held(count, module, sharing, dtype)
    weights = model.hold_weights()
    module.train()
    model.hold_gradients(accumulates)
    shapes = meta_batch(batch)
    for value in shapes.values():
        if isinstance(value, torch.Tensor):
            count.add(value)
    held = tuple(count.events)
    state = model.hold_optimizer()
    count.begin_step()
    with (
        model.stepping(),
        fused_attention(),
        torch.enable_grad(),
        count,
        meta_autocast(dtype),
    ):
        total, _, added = compute_losses(call, loss, module, shapes)
        torch.autograd.backward(total if added is None else total + added)
    allocations = Allocations(held, state, tuple(count.events))
    return _traced(count, weights, model, allocations)


def trace_evaluation(
    module: nn.Module,
    run: Callable[[nn.Module, Mapping[str, Any]], Any],
    batch: Mapping[str, Any],
    dtype: torch.dtype | None = None,
    sharing: Sharing = ALONE,
) -> Traced:
    """Trace `run(module, batch)` without gradients, when the optimizer state exists.

    `dtype` is the lower precision of mixed precision.
    """
    import torch

    from surefit.memory.meta_autocast import meta_autocast
    from surefit.memory.storage_counter import LiveBytes, fused_attention

    count = LiveBytes()
    model = _held(count, module, sharing, dtype if sharing.shards else None)
    weights = model.hold_weights()
    held = tuple(count.events)
    state = model.hold_optimizer()
    training = module.training
    module.eval()
    count.begin_step()
    try:
        with (
            model.evaluating(),
            fused_attention(),
            torch.no_grad(),
            count,
            meta_autocast(dtype),
        ):
            run(module, meta_batch(batch))
    finally:
        module.train(training)
    allocations = Allocations(held, state, tuple(count.events))
    return _traced(count, weights, model, allocations)


def _held(
    count: LiveBytes, module: nn.Module, sharing: Sharing, dtype: torch.dtype | None
) -> WholeModel:
    """What a process holds of the model, by how processes share it."""
    from surefit.memory.sharded_memory import ShardedModel

    if sharing.shards:
        return ShardedModel(count, module, sharing, dtype)
    kind = WholeModel if sharing.num_processes == 1 else ReplicatedModel
    return kind(count, module, sharing)


def meta_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch with floating-point tensors on the meta device; integers keep their values."""
    import torch

    return {
        name: torch.empty_like(value, device="meta")
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in batch.items()
    }


def _traced(count: LiveBytes, weights: int, model: WholeModel, allocations: Allocations) -> Traced:
    return Traced(
        peak=count.peak,
        weights=weights,
        gradients=count.at_peak.get(GRADIENTS, 0),
        optimizer=sum(allocations.state),
        flops=count.flops,
        moved_bytes=count.moved_bytes,
        num_ops=count.num_ops,
        # A device has an allocator of its own.
        heap_peak=None if model.sharing.on_device else replay(allocations),
        largest_on_heap=allocations.largest_on_heap,
        gathers=count.at_peak.get(GATHERS, 0),
        all_gather_bytes=model.all_gather_bytes,
        reduce_scatter_bytes=model.reduce_scatter_bytes,
    )
