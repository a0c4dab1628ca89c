"""What a process holds of a model in a training step, besides the activations, and what it sends.

How much depends on how processes share the model: one process alone, data parallel (DDP), or
divided over the processes (FSDP).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefit.models.optimizer import DEFAULT, OptimizerKind
from surefit.models.quantize import quantization_tensors
from surefit.speed.varlen_attention import find_pretrained

if TYPE_CHECKING:
    import torch
    from torch import nn

SAVED_COPIES = 2
"""Copies of a whole tensor while it is gathered: the one received, and the one made of it."""


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


@dataclass(frozen=True)
class Exchange:
    """Bytes that a process sends in an optimizer step, by collective."""

    by: Mapping[str, int]
    save_gather_bytes: int = 0
    """Memory in which a divided model is gathered to be saved, one tensor at a time."""

    @property
    def step_bytes(self) -> int:
        """All that a process sends in a step."""
        return sum(self.by.values())


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
    trained = sum(trained_sizes(module))
    tensors = (*module.parameters(), *module.buffers(), *quantization_tensors(module))
    copies = accumulates + (sharing.num_processes > 1)
    states = sharing.optimizer.state_bytes(module, lambda weight: weight.nbytes)
    return Held(unique_bytes(tensors), states, copies * trained)


def trained_sizes(module: nn.Module) -> list[int]:
    """Bytes of each weight that is trained."""
    return [weight.nbytes for weight in module.parameters() if weight.requires_grad]


def gathered_dtype(module: nn.Module, dtype: torch.dtype | None) -> torch.dtype | None:
    """The precision that weights are gathered in, if not their own.

    As the engine does it: layers of other modules may meet inputs in full precision.
    """
    return dtype if find_pretrained(module) is not None else None


def _sharded(
    module: nn.Module, sharing: Sharing, dtype: torch.dtype | None, accumulates: bool
) -> Held:
    """A model divided by FSDP: shards, and the units that are gathered for their computation.

    The root unit (embeddings and head) stays gathered from its forward to its backward pass, beside
    the buffer it was gathered in, and then beside its gradients. Of the blocks, one is computed
    while the next is gathered.
    """
    count, weights = sharing.num_processes, [*module.parameters()]
    root, blocks = _units(module, sharing, dtype)
    trained = sum(padded_shard(weight, count) for weight in weights if weight.requires_grad)
    shards = sum(padded_shard(weight, count) for weight in weights)
    return Held(
        weights=shards + unique_bytes(module.buffers()),
        optimizer=sharing.optimizer.state_bytes(module, lambda w: padded_shard(w, count)),
        gradients=trained if accumulates else 0,
        gathers=2 * (root + max(blocks, default=0)),
    )


def exchanged_bytes(
    module: nn.Module, sharing: Sharing, dtype: torch.dtype | None, grad_accum: int
) -> Exchange | None:
    """Account for what a process sends in a step; None for one process.

    Whole models sum gradients in the last micro-batch; a ring sends them twice, but for the share
    that stays. Divided models gather weights and sum gradients in each micro-batch: each unit for
    the forward pass, and each block again for the backward pass.
    """
    count, trained = sharing.num_processes, sum(trained_sizes(module))
    if count == 1:
        return None
    if not sharing.shards:
        return Exchange({"all_reduce": round(2 * (count - 1) / count * trained)})
    root, blocks = _units(module, sharing, gathered_dtype(module, dtype))
    sent = {"all_gather": root + 2 * sum(blocks), "reduce_scatter": trained}
    largest = max((weight.nbytes for weight in module.parameters()), default=0)
    return Exchange(
        {name: size * (count - 1) // count * grad_accum for name, size in sent.items()},
        save_gather_bytes=SAVED_COPIES * largest,
    )


def _units(module: nn.Module, sharing: Sharing, dtype: torch.dtype | None) -> tuple[int, list[int]]:
    """Bytes of the root unit, and of each block, in the precision that they are gathered in."""
    from surefit.models.sharding import find_units

    blocks = [] if sharing.gathers_whole else find_units(module)
    sizes = [gathered_bytes(block, dtype) for block in blocks]
    return gathered_bytes(module, dtype) - sum(sizes), sizes


def gathered_bytes(part: nn.Module, dtype: torch.dtype | None) -> int:
    """Bytes of the weights of a unit in the precision that they are gathered in."""
    return sum(
        weight.nbytes if dtype is None else weight.numel() * dtype.itemsize
        for weight in part.parameters()
    )


def padded_shard(weight: torch.Tensor, num_processes: int) -> int:
    """Bytes of one process's shard: the first axis is divided, and padded.

    >>> import torch
    >>> padded_shard(torch.empty(10, 3), 4)
    36
    """
    rows = weight.shape[0] if weight.ndim else 1
    return -(-rows // num_processes) * (weight.nbytes // max(rows, 1))


def unique_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of tensors; those that share their memory are counted once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())
