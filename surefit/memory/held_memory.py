"""What a process holds in a traced step besides activations, by how processes share the model.

Each class counts weights, gradients and optimizer state where the real run allocates and frees
them. `sharded_memory.py` has the third one, of models that are divided over processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surefit.models.quantize import quantization_tensors

if TYPE_CHECKING:
    import torch
    from torch import nn

    from surefit.memory.storage_counter import LiveBytes

ADAM_STATES = 2
"""Optimizer state of AdamW per trained weight: the first and the second moment."""
GRADIENTS, GATHERS, OPTIMIZER = "gradients", "gathers", "optimizer"
"""Labels of the counted bytes."""
BUCKET_BYTES = 25 * 1024 * 1024
"""DDP reduces gradients in buckets of this size."""


@dataclass(frozen=True)
class Sharing:
    """How processes share the model of a run."""

    num_processes: int = 1
    parallel: str = "ddp"
    on_device: bool = False
    """Whether collectives run on an accelerator; gloo, on the host, copies what it sends."""
    gathers_whole: bool = False
    """Whether a divided model is one unit, not one per block."""

    @property
    def shards(self) -> bool:
        """Whether each process holds a shard of the weights."""
        return self.parallel == "fsdp" and self.num_processes > 1


ALONE = Sharing()


class WholeModel:
    """One process alone: the whole weights, gradients and optimizer state."""

    def __init__(self, count: LiveBytes, module: nn.Module, sharing: Sharing = ALONE) -> None:
        self.count, self.module, self.sharing = count, module, sharing
        self.trained = [weight for weight in module.parameters() if weight.requires_grad]
        self.all_gather_bytes = self.reduce_scatter_bytes = 0

    def hold_weights(self) -> int:
        """Count weights and buffers, which stay; returns their bytes."""
        scales = quantization_tensors(self.module)
        tensors = (*self.module.parameters(), *self.module.buffers(), *scales)
        return sum(self.count.add(tensor) for tensor in tensors)

    def hold_gradients(self, accumulates: bool) -> None:
        """Count the gradients that exist when a micro-batch begins."""
        import torch

        self.accumulates = accumulates
        for weight in self.trained:
            weight.grad = torch.empty_like(weight) if accumulates else None
        grads = [weight.grad for weight in self.trained if weight.grad is not None]
        self._label(GRADIENTS, sum(self.count.add(grad) for grad in grads))

    def hold_optimizer(self) -> tuple[int, ...]:
        """Count the optimizer state, which stays; returns the bytes of its tensors."""
        sizes = tuple(size for size in self.state_sizes() for _ in range(ADAM_STATES))
        for size in sizes:
            self.count.take(size, OPTIMIZER)
        return sizes

    def state_sizes(self) -> Iterator[int]:
        """Bytes of one moment of each trained weight."""
        return (weight.nbytes for weight in self.trained)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """While the block runs a micro-batch, count gradients as the backward pass makes them."""
        hooks = [] if self.accumulates else [self._on_gradient(weight) for weight in self.trained]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for weight in self.trained:
                weight.grad = None

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """While the block runs without gradients."""
        yield

    def _on_gradient(self, weight: torch.Tensor) -> Any:
        return weight.register_post_accumulate_grad_hook(self._made)  # type: ignore[no-untyped-call]

    def _made(self, weight: torch.Tensor) -> None:
        assert weight.grad is not None
        self._label(GRADIENTS, weight.grad.untyped_storage().nbytes())

    def _label(self, name: str, size: int) -> None:
        self.count.labelled[name] = self.count.labelled.get(name, 0) + size


class ReplicatedModel(WholeModel):
    """Data parallel (DDP): the whole model, and buckets of gradients that stay between steps.

    A gradient is copied into its bucket as soon as it is made, and freed. The inner micro-batches
    of a step are not reduced: their gradients are held apart from the buckets until the last one.
    """

    def hold_gradients(self, accumulates: bool) -> None:
        """Count the buckets, and the gradients of earlier micro-batches beside them."""
        super().hold_gradients(accumulates)
        total = sum(weight.nbytes for weight in self.trained)
        for start in range(0, total, BUCKET_BYTES):
            self.count.take(min(BUCKET_BYTES, total - start), GRADIENTS)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """While the block runs the last micro-batch of a step."""
        hooks = [self._on_gradient(weight) for weight in self.trained]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _made(self, weight: torch.Tensor) -> None:
        assert weight.grad is not None
        if self.accumulates:
            self._label(GRADIENTS, -weight.grad.untyped_storage().nbytes())
        weight.grad = None
