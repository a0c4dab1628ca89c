"""Trace a training step or an evaluation batch on the meta device: its memory and its work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surefit.memory.replay_heap import Allocations, replay
from surefit.models.call import Call, compute_losses
from surefit.tasks.task_spec import Loss

if TYPE_CHECKING:
    import torch
    from torch import nn

    from surefit.memory.storage_counter import LiveBytes

ADAM_STATES = 2
"""Optimizer state of AdamW per trained weight: the first and the second moment."""


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

    @property
    def activations(self) -> int:
        """The rest of the peak: activations, the batch, temporary tensors."""
        return self.peak - self.weights - self.gradients - self.optimizer


def trace_training(
    module: nn.Module,
    call: Call,
    loss: Loss,
    batch: Mapping[str, Any],
    *,
    accumulates: bool = False,
    dtype: torch.dtype | None = None,
) -> Traced:
    """Trace forward and backward of a later step, when the optimizer state exists.

    `module` is on the meta device. With `accumulates`, the gradients of an earlier micro-batch
    exist already. `dtype` is the lower precision of mixed precision.
    """
    import torch

    from surefit.memory.meta_autocast import meta_autocast
    from surefit.memory.storage_counter import LiveBytes, fused_attention

    count = LiveBytes()
    trained = [p for p in module.parameters() if p.requires_grad]
    weights = sum(count.add(t) for t in (*module.parameters(), *module.buffers()))
    module.train()
    for weight in trained:
        weight.grad = torch.empty_like(weight) if accumulates else None
    gradients = sum(count.add(p.grad) for p in trained if p.grad is not None)
    count.labelled["gradients"] = gradients
    hooks = [] if accumulates else [_count_gradient(weight, count) for weight in trained]
    shapes = meta_batch(batch)
    for value in shapes.values():
        if isinstance(value, torch.Tensor):
            count.add(value)
    held = tuple(count.events)
    state = _optimizer_state(module)
    optimizer = sum(count.add(tensor) for tensor in state)
    count.begin_step()
    try:
        with fused_attention(), torch.enable_grad(), count, meta_autocast(dtype):
            total, _, added = compute_losses(call, loss, module, shapes)
            torch.autograd.backward(total if added is None else total + added)
    finally:
        for hook in hooks:
            hook.remove()
        allocations = Allocations(held, _state_sizes(state), tuple(count.events))
        for weight in trained:
            weight.grad = None
    return _traced(count, weights, optimizer, allocations)


def trace_evaluation(
    module: nn.Module,
    run: Callable[[nn.Module, Mapping[str, Any]], Any],
    batch: Mapping[str, Any],
) -> Traced:
    """Trace `run(module, batch)` without gradients, when the optimizer state exists."""
    import torch

    from surefit.memory.storage_counter import LiveBytes, fused_attention

    count = LiveBytes()
    weights = sum(count.add(t) for t in (*module.parameters(), *module.buffers()))
    held = tuple(count.events)
    state = _optimizer_state(module)
    optimizer = sum(count.add(tensor) for tensor in state)
    training = module.training
    module.eval()
    count.begin_step()
    try:
        with fused_attention(), torch.no_grad(), count:
            run(module, meta_batch(batch))
    finally:
        module.train(training)
    allocations = Allocations(held, _state_sizes(state), tuple(count.events))
    return _traced(count, weights, optimizer, allocations)


def meta_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch with floating-point tensors on the meta device; integers keep their values."""
    import torch

    return {
        name: torch.empty_like(value, device="meta")
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in batch.items()
    }


def _optimizer_state(module: nn.Module) -> list[torch.Tensor]:
    """The optimizer state of AdamW for the weights that are trained."""
    import torch

    return [
        torch.empty(weight.numel() * ADAM_STATES, dtype=weight.dtype, device="meta")
        for weight in module.parameters()
        if weight.requires_grad
    ]


def _count_gradient(weight: torch.Tensor, count: LiveBytes) -> Any:
    """A hook that adds the gradient of a weight to the count when the backward pass makes it."""

    def made(tensor: torch.Tensor) -> None:
        assert tensor.grad is not None
        count.labelled["gradients"] += tensor.grad.untyped_storage().nbytes()

    return weight.register_post_accumulate_grad_hook(made)  # type: ignore[no-untyped-call]


def _state_sizes(state: list[torch.Tensor]) -> tuple[int, ...]:
    """The sizes of the optimizer state as it is allocated, a tensor per moment."""
    return tuple(t.nbytes // ADAM_STATES for t in state for _ in range(ADAM_STATES))


def _traced(count: LiveBytes, weights: int, optimizer: int, allocations: Allocations) -> Traced:
    return Traced(
        peak=count.peak,
        weights=weights,
        gradients=count.at_peak.get("gradients", 0),
        optimizer=optimizer,
        flops=count.flops,
        moved_bytes=count.moved_bytes,
        num_ops=count.num_ops,
        heap_peak=replay(allocations),
        largest_on_heap=allocations.largest_on_heap,
    )
