"""One training step and one evaluation batch on shapes alone: what they hold, what they cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surefit.models.call import Call
from surefit.tasks.task_spec import Loss

if TYPE_CHECKING:
    import torch
    from torch import nn

    from surefit.memory.storage_counter import LiveBytes

ADAM_STATES = 2


@dataclass(frozen=True)
class Traced:
    """The most bytes that were alive at once, what they were, and the work of the pass."""

    peak: int
    weights: int
    gradients: int
    optimizer: int
    flops: int
    moved_bytes: int
    num_ops: int
    heap_bytes: int = 0
    """All bytes that passed through the heap in the pass, in pieces of less than 32 MB."""

    @property
    def activations(self) -> int:
        """Everything else at the peak: activations, the batch, temporaries."""
        return self.peak - self.weights - self.gradients - self.optimizer


def trace_training(
    module: nn.Module,
    call: Call,
    loss: Loss,
    batch: Mapping[str, Any],
    *,
    accumulates: bool = False,
    optimizer_states: float = ADAM_STATES,
    autocast: torch.dtype | None = None,
) -> Traced:
    """A step of a run that is under way: the optimizer has its state, `module` is on meta.

    With `accumulates`, the gradients of an earlier micro-batch are there when it begins.
    """
    import torch

    from surefit.memory.meta_autocast import half_precision
    from surefit.memory.storage_counter import LiveBytes, fused_attention

    count = LiveBytes()
    weights = sum(count.note(t) for t in (*module.parameters(), *module.buffers()))
    trained = [p for p in module.parameters() if p.requires_grad]
    state = _optimizer_state(trained, optimizer_states)
    optimizer = sum(count.note(tensor) for tensor in state)
    module.train()
    for weight in trained:
        weight.grad = torch.empty_like(weight) if accumulates else None
    gradients = sum(count.note(p.grad) for p in trained if p.grad is not None)
    count.marked["gradients"] = gradients
    hooks = [] if accumulates else [_watch(weight, count) for weight in trained]
    shapes = meta_batch(batch)
    for value in shapes.values():
        if isinstance(value, torch.Tensor):
            count.note(value)
    before = count.heap_bytes
    try:
        with fused_attention(), torch.enable_grad(), count, half_precision(autocast):
            total, _ = loss(call(module, shapes), shapes)
            torch.autograd.backward(total)
    finally:
        for hook in hooks:
            hook.remove()
        for weight in trained:
            weight.grad = None
    return _traced(count, weights, optimizer, before)


def trace_evaluation(
    module: nn.Module,
    run: Callable[[nn.Module, Mapping[str, Any]], Any],
    batch: Mapping[str, Any],
    *,
    optimizer_states: float = ADAM_STATES,
) -> Traced:
    """A batch without gradients, in the middle of a run: `run(module, batch)` on meta."""
    import torch

    from surefit.memory.storage_counter import LiveBytes, fused_attention

    count = LiveBytes()
    weights = sum(count.note(t) for t in (*module.parameters(), *module.buffers()))
    trained = [p for p in module.parameters() if p.requires_grad]
    state = _optimizer_state(trained, optimizer_states)
    optimizer = sum(count.note(tensor) for tensor in state)
    training = module.training
    module.eval()
    before = count.heap_bytes
    try:
        with fused_attention(), torch.no_grad(), count:
            run(module, meta_batch(batch))
    finally:
        module.train(training)
    return _traced(count, weights, optimizer, before)


def meta_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch as the trace takes it: shapes of floating numbers, whole numbers as they are."""
    import torch

    return {
        name: torch.empty_like(value, device="meta")
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in batch.items()
    }


def _optimizer_state(trained: Sequence[torch.Tensor], states: float) -> list[torch.Tensor]:
    import torch

    return [
        torch.empty(round(weight.numel() * states), dtype=weight.dtype, device="meta")
        for weight in trained
    ]


def _watch(weight: torch.Tensor, count: LiveBytes) -> Any:
    def made(tensor: torch.Tensor) -> None:
        assert tensor.grad is not None
        count.marked["gradients"] += tensor.grad.untyped_storage().nbytes()

    return weight.register_post_accumulate_grad_hook(made)  # type: ignore[no-untyped-call]


def _traced(count: LiveBytes, weights: int, optimizer: int, before: int) -> Traced:
    return Traced(
        peak=count.peak,
        weights=weights,
        gradients=count.at_peak.get("gradients", 0),
        optimizer=optimizer,
        flops=count.flops,
        moved_bytes=count.moved_bytes,
        num_ops=count.num_ops,
        heap_bytes=max(count.heap_bytes - before, 0),
    )
