"""Trace a training step on the meta device: its memory and its work.

What a process holds of a model besides its activations depends on how processes share the model:
one process alone, data parallel (DDP), or sharded over the processes (FSDP).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surefit.models.call import Call, compute_losses
from surefit.models.optimizer import DEFAULT, OptimizerKind
from surefit.models.quantize import quantization_tensors
from surefit.models.sharding import find_units, gathered_dtype
from surefit.targets.task_spec import Loss

if TYPE_CHECKING:
    import torch
    from torch import nn

    from surefit.memory.meta_device import LiveBytes


@dataclass(frozen=True)
class Sharing:
    """How processes share the model of a run, and what its optimizer keeps."""

    num_processes: int = 1
    parallel: str = "ddp"
    gathers_whole: bool = False
    """Whether a divided model is one unit, not one per block."""
    optimizer: OptimizerKind = DEFAULT

    @property
    def shards(self) -> bool:
        """Whether each process holds a shard of the weights."""
        return self.parallel == "fsdp" and self.num_processes > 1


ALONE = Sharing()


@dataclass(frozen=True)
class Held:
    """Bytes that a process holds throughout a step."""

    weights: int
    optimizer: int
    gradients: int = 0
    gathers: int = 0
    """Gathered weights and buffers of gradients, of a model divided over processes."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.optimizer + self.gradients + self.gathers


def held_bytes(
    module: nn.Module,
    sharing: Sharing = ALONE,
    dtype: torch.dtype | None = None,
    accumulates: bool = False,
) -> Held:
    """Account for weights, gradients and optimizer state by how processes share the model.

    Gradients that the backward pass makes while activations are freed are traced; here are those
    that are there before it: of earlier micro-batches, and DDP's buckets, which it holds between
    steps. `dtype` is the lower precision of mixed precision.
    """
    if sharing.shards:
        return _sharded(module, sharing, gathered_dtype(module, dtype), accumulates)
    trained = sum(weight.nbytes for weight in module.parameters() if weight.requires_grad)
    tensors = (*module.parameters(), *module.buffers(), *quantization_tensors(module))
    copies = accumulates + (sharing.num_processes > 1)
    states = sharing.optimizer.state_bytes(module, lambda weight: weight.nbytes)
    return Held(unique_bytes(tensors), states, copies * trained)


def _sharded(
    module: nn.Module, sharing: Sharing, dtype: torch.dtype | None, accumulates: bool
) -> Held:
    """Return a model divided by FSDP: shards, and the units that are gathered for their
    computation.

    The root unit (embeddings and head) stays gathered from its forward to its backward pass, beside
    the buffer it was gathered in, and then beside its gradients. Of the blocks, one is computed
    while the next is gathered.
    """
    count, weights = sharing.num_processes, [*module.parameters()]
    units = [] if sharing.gathers_whole else find_units(module)
    blocks = [gathered_bytes(block, dtype) for block in units]
    root = gathered_bytes(module, dtype) - sum(blocks)
    trained = sum(padded_shard(weight, count) for weight in weights if weight.requires_grad)
    shards = sum(padded_shard(weight, count) for weight in weights)
    return Held(
        weights=shards + unique_bytes(module.buffers()),
        optimizer=sharing.optimizer.state_bytes(module, lambda w: padded_shard(w, count)),
        gradients=trained if accumulates else 0,
        gathers=2 * (root + max(blocks, default=0)),
    )


def gathered_bytes(part: nn.Module, dtype: torch.dtype | None) -> int:
    """Return bytes of the weights of a unit in the precision that they are gathered in."""
    return sum(
        weight.nbytes if dtype is None else weight.numel() * dtype.itemsize
        for weight in part.parameters()
    )


def padded_shard(weight: torch.Tensor, num_processes: int) -> int:
    """Return bytes of one process's shard: the first axis is divided, and padded.

    >>> import torch
    >>> padded_shard(torch.empty(10, 3), 4)
    36
    """
    rows = weight.shape[0] if weight.ndim else 1
    return -(-rows // num_processes) * (weight.nbytes // max(rows, 1))


def unique_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return bytes of tensors; those that share their memory are counted once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


@dataclass(frozen=True)
class Traced:
    """Bytes of live tensors at the peak of a pass, by what they are, and the work of the pass."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    """Activations, the batch, temporary tensors."""
    heap_bytes: int
    """Bytes that the pass allocates on malloc's heap, from its beginning to its end."""
    flops: int
    moved_bytes: int
    num_ops: int
    gathers: int = 0
    """Gathered weights and buffers of collectives, of a model divided over processes."""

    @property
    def peak(self) -> int:
        """Peak bytes of live tensors."""
        return self.weights + self.gradients + self.optimizer + self.gathers + self.activations


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

    from surefit.memory.meta_device import LiveBytes, fused_attention, meta_autocast

    module.train()
    held, count = held_bytes(module, sharing, dtype, accumulates), LiveBytes()
    lowered = gathered_dtype(module, dtype) if sharing.shards else None
    processes = sharing.num_processes if sharing.shards else 1
    with (
        torch.enable_grad(),
        _counting_gradients(count, module, processes, counts=held.gradients == 0),
        _gathered_in(lowered, module),
    ):
        for tensor in (*module.parameters(), *module.buffers(), *quantization_tensors(module)):
            count.hide(tensor)
        shapes = meta_batch(batch)
        for value in shapes.values():
            if isinstance(value, torch.Tensor):
                count.add(value)
        with fused_attention(), count, meta_autocast(dtype):
            total, _, added, _ = compute_losses(call, loss, module, shapes)
            torch.autograd.backward(total if added is None else total + added)
            del total, added
    made = count.gradients_at_peak
    return Traced(
        weights=held.weights,
        gradients=held.gradients + made,
        optimizer=held.optimizer,
        activations=count.peak - made,
        heap_bytes=count.heap_bytes,
        flops=count.flops,
        moved_bytes=count.moved_bytes,
        num_ops=count.num_ops,
        gathers=held.gathers,
    )


@contextmanager
def _counting_gradients(
    count: LiveBytes, module: nn.Module, processes: int, *, counts: bool
) -> Iterator[None]:
    """While the block runs, count gradients as they are made, or this process's shard of them.

    Where they have been counted before, those that are made are added to them and freed.
    """
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    # in the own precision of the weights, whatever they are gathered in
    shards = {id(weight): padded_shard(weight, processes) for weight in trained}

    def made(weight: torch.Tensor) -> None:
        assert weight.grad is not None
        shard = shards[id(weight)] if counts else 0
        count.gradients += shard
        if not counts or processes > 1:
            weight.grad = None
            count.grow(shard)

    hooks: list[Any] = [
        weight.register_post_accumulate_grad_hook(made)  # type: ignore[no-untyped-call]
        for weight in trained
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for weight in trained:
            weight.grad = None


@contextmanager
def _gathered_in(dtype: torch.dtype | None, module: nn.Module) -> Iterator[None]:
    """While the block runs, the weights have the dtype that they are gathered in."""
    own = [(weight, weight.data) for weight in module.parameters()]
    for weight, data in own if dtype is not None else ():
        weight.data = data.to(dtype) if data.is_floating_point() else data
    try:
        yield
    finally:
        for weight, data in own:
            weight.data = data


def meta_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return batch with floating-point tensors on the meta device; integers keep their values."""
    import torch

    return {
        name: torch.empty_like(value, device="meta")
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in batch.items()
    }
