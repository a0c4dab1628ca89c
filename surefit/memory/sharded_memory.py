"""What a process holds in a traced step of a model that FSDP divides over processes.

The traced module is whole; hooks on the units of `shard_module` count what torch's `fully_shard`
does around them. No process group is needed, so that nothing of the trace can reach the training.

A unit's weights are gathered before its forward pass into one buffer, and copied from there into
full weights. The buffer is freed when the next unit has been copied. After the forward pass the
full weights are freed, but for the root's. The backward pass gathers them again, one unit ahead.
After a unit's backward pass its gradients are copied into a buffer, which is reduced to this
process's shard; it is freed when the next unit has been reduced. With accumulation, each
micro-batch is reduced, and its shard is added to that of earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from surefit.kernels.varlen_attention import find_pretrained
from surefit.memory.held_memory import GATHERS, GRADIENTS, Sharing, WholeModel
from surefit.memory.replay_heap import LARGEST_ON_HEAP

if TYPE_CHECKING:
    from torch import nn

    from surefit.memory.storage_counter import LiveBytes

Free = Callable[[], None]
GLOO_THREADS, GLOO_COPIES, THREAD_HEAP_BYTES = 2, 3, 64 * 1024 * 1024
"""gloo gathers and reduces in copies, in threads of its own. malloc keeps some copies of each
thread, as many as its heap has room for; larger ones than LARGEST_ON_HEAP are freed. Measured."""


def padded_rows(weight: torch.Tensor, num_processes: int) -> int:
    """Elements of one process's shard: the first axis is divided, and padded.

    >>> padded_rows(torch.empty(10, 3), 4)
    9
    """
    rows = weight.shape[0]
    return -(-rows // num_processes) * (weight.numel() // max(rows, 1))


class Unit:
    """Weights that are gathered and reduced together."""

    def __init__(self, module: nn.Module, weights: list[nn.Parameter], is_root: bool) -> None:
        self.module, self.weights, self.is_root = module, weights, is_root
        self.gathered: list[Free] = []
        self.pending: Free | None = None
        """Frees the buffer of a gather that was begun ahead of its use."""
        self.is_reduced = False
        self.places: list[int] = []
        """Where the unit stands in the order of the forward pass."""


class ShardedModel(WholeModel):
    """A shard of weights, gradients and optimizer state, and units that are gathered in turn."""

    def __init__(
        self,
        count: LiveBytes,
        module: nn.Module,
        sharing: Sharing,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`dtype` is the lower precision of mixed precision."""
        super().__init__(count, module, sharing)
        # As the engine does: layers of other modules may meet inputs in full precision.
        self.dtype = dtype if find_pretrained(module) is not None else None
        self.units = [*_units(module, sharing.gathers_whole)]
        self._sizes: dict[torch.Tensor, int] = {
            weight: weight.element_size() for weight in module.parameters()
        }
        """Bytes of an element in the weight's own dtype, whatever it is gathered in."""
        self._order: list[Unit] = []
        self._last_gather: Free | None = None
        self._last_reduced: Free | None = None
        self._in_backward = False

    def hold_weights(self) -> int:
        """Count the shards of the weights, and whole buffers.

        On the host the whole weights are there first: where they were, holes remain in the heap.
        """
        weights = [weight for unit in self.units for weight in unit.weights]
        for weight in weights:
            self.count.hide(weight)
        sizes = [0 if self.sharing.on_device else weight.nbytes for weight in weights]
        whole = [self.count.take(size, GATHERS) for size in sizes]
        for weight, free in zip(weights, whole, strict=True):
            self.count.take(self._shard_bytes(weight))
            free()
        if not self.sharing.on_device:
            self._hold_copies()
        buffers = sum(self.count.add(buffer) for buffer in self.module.buffers())
        return sum(map(self._shard_bytes, weights)) + buffers

    def _hold_copies(self) -> None:
        """Count the copies that gloo's threads keep."""
        size = max(filter(_is_kept, map(self._unit_bytes, self.units)), default=0)
        copies = min(GLOO_COPIES, THREAD_HEAP_BYTES // max(size, 1))
        for _ in range(GLOO_THREADS * copies):
            self.count.take(size, GATHERS)

    def hold_gradients(self, accumulates: bool) -> None:
        """Count the shards of the gradients of earlier micro-batches."""
        super().hold_gradients(accumulates=False)
        self.accumulates = accumulates
        for weight in self.trained if accumulates else ():
            self.count.take(self._shard_bytes(weight), GRADIENTS)

    def state_sizes(self) -> Iterator[int]:
        """Bytes of one moment of each trained shard."""
        return (self._shard_bytes(weight) for weight in self.trained)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """While the block runs a micro-batch of a step."""
        made = [self._on_gradient(weight) for weight in self.trained]
        try:
            with self.evaluating():
                yield
                self._finish()
        finally:
            for hook in made:
                hook.remove()
            for weight in self.trained:
                weight.grad = None

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """While the block runs, units are gathered for their forward pass."""
        own = [(weight, weight.data) for weight in self.module.parameters()]
        for weight, data in own:
            if self.dtype is not None and data.is_floating_point():
                weight.data = data.to(self.dtype)
                self.count.hide(weight)
        hooks: list[Any] = []
        for unit in self.units:
            module = unit.module
            hooks += [
                module.register_forward_pre_hook(
                    self._before(unit), with_kwargs=True, prepend=True
                ),
                module.register_forward_hook(self._after(unit)),
            ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for weight, data in own:
                weight.data = data

    def _shard_bytes(self, weight: torch.Tensor) -> int:
        """Bytes of a shard in the weight's own dtype."""
        return padded_rows(weight, self.sharing.num_processes) * self._sizes[weight]

    def _full_bytes(self, weight: torch.Tensor) -> int:
        """Bytes of a gathered weight, in the dtype that it is gathered in."""
        whole = padded_rows(weight, self.sharing.num_processes) * self.sharing.num_processes
        return whole * weight.element_size()

    def _unit_bytes(self, unit: Unit) -> int:
        return sum(self._full_bytes(weight) for weight in unit.weights)

    def _exchange(self, size: int) -> None:
        """Count the copy that gloo makes of a buffer, where it is not kept anyway."""
        if not self.sharing.on_device and not _is_kept(size):
            self.count.take(size, GATHERS)()

    def _sent(self, size: int) -> int:
        """Bytes that a process sends of a buffer in a ring: all but its own share."""
        return size - size // self.sharing.num_processes

    def _gather(self, unit: Unit) -> None:
        """Begin to gather a unit, unless it is gathered or about to be."""
        if unit.gathered or unit.pending is not None:
            return
        size = self._unit_bytes(unit)
        cast = [weight for weight in unit.weights if weight.element_size() != self._sizes[weight]]
        free_cast = self.count.take(
            sum(self._full_bytes(weight) for weight in cast) // self.sharing.num_processes, GATHERS
        )
        unit.pending = self.count.take(size, GATHERS)
        free_cast()
        self._exchange(size)
        self.all_gather_bytes += self._sent(size)

    def _copy_out(self, unit: Unit) -> None:
        """Copy a gathered buffer into full weights."""
        if unit.pending is None:
            return
        unit.gathered = [
            self.count.take(self._full_bytes(weight), GATHERS) for weight in unit.weights
        ]
        if self._in_backward:
            unit.pending()
        else:
            self._free_last_gather()
            self._last_gather = unit.pending
        unit.pending = None

    def _free_last_gather(self) -> None:
        if self._last_gather is not None:
            self._last_gather()
            self._last_gather = None

    def _reshard(self, unit: Unit) -> None:
        for free in unit.gathered:
            free()
        unit.gathered = []

    def _before(self, unit: Unit) -> Callable[..., Any]:
        def gather(_: Any, args: Any, kwargs: Any) -> Any:
            self._gather(unit)
            self._copy_out(unit)
            if self._in_backward or not torch.is_grad_enabled():
                return None
            flat, spec = tree_flatten((args, kwargs))
            places = [
                place
                for place, value in enumerate(flat)
                if isinstance(value, torch.Tensor) and value.requires_grad
            ]
            if not places:
                return None
            passed = _AfterBackward.apply(  # type: ignore[no-untyped-call]
                lambda: self._reduce(unit), *(flat[place] for place in places)
            )
            for place, value in zip(places, passed, strict=True):
                flat[place] = value
            return tree_unflatten(flat, spec)

        return gather

    def _after(self, unit: Unit) -> Callable[..., Any]:
        def reshard(_: Any, __: Any, output: Any) -> None:
            if self._in_backward:
                return
            if not unit.is_root:
                self._reshard(unit)
            unit.places.append(len(self._order))
            self._order.append(unit)
            for value in tree_flatten(output)[0]:
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    value.register_hook(  # type: ignore[no-untyped-call]
                        lambda _: self._before_backward(unit)
                    )
            if unit.is_root:
                self._free_last_gather()

        return reshard

    def _before_backward(self, unit: Unit) -> None:
        self._in_backward = True
        self._gather(unit)
        self._copy_out(unit)
        if unit.places and (place := unit.places.pop()) > 0:
            self._gather(self._order[place - 1])

    def _reduce(self, unit: Unit) -> None:
        """Free the full weights of a unit, and reduce its gradients to the shard."""
        if unit.is_reduced:
            return
        unit.is_reduced = True
        self._reshard(unit)
        if self._last_reduced is not None:
            self._last_reduced()
            self._last_reduced = None
        made = [weight for weight in unit.weights if weight.grad is not None]
        if not made:
            return
        shard = sum(self._shard_bytes(weight) for weight in made)
        size = shard * self.sharing.num_processes  # gradients are summed in the own dtype
        self._last_reduced = self.count.take(size, GATHERS)
        for weight in made:
            self._drop_gradient(weight)
        added = self.count.take(shard, GRADIENTS)
        self._exchange(size)
        if self.accumulates:  # it was added to the shard that is there
            added()
        self.reduce_scatter_bytes += self._sent(size)

    def _drop_gradient(self, weight: torch.Tensor) -> None:
        if weight.grad is not None:
            self._label(GRADIENTS, -weight.grad.untyped_storage().nbytes())
            weight.grad = None

    def _finish(self) -> None:
        """Reduce what no backward pass of an input has: the root, above all."""
        for unit in self.units:
            if unit.pending is not None:
                unit.pending()
                unit.pending = None
            self._reduce(unit)
        if self._last_reduced is not None:
            self._last_reduced()


def _is_kept(size: int) -> bool:
    """Whether malloc keeps a freed block of this size for the thread that had it."""
    return size < LARGEST_ON_HEAP


class _AfterBackward(torch.autograd.Function):
    """Passes tensors on; calls a function when the backward pass has come through them."""

    @staticmethod
    def forward(ctx: Any, done: Callable[[], None], *tensors: torch.Tensor) -> Any:
        """The tensors themselves."""
        ctx.done = done
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradients themselves."""
        ctx.done()
        return None, *gradients


def _units(module: nn.Module, whole: bool) -> Iterator[Unit]:
    """The units that `shard_module` makes; a weight belongs to the first that has it."""
    from surefit.models.shard_module import find_units

    seen: set[nn.Parameter] = set()
    for part in (*([] if whole else find_units(module)), module):
        weights = [weight for weight in part.parameters() if weight not in seen]
        seen.update(weights)
        if weights or part is module:
            yield Unit(part, weights, is_root=part is module)
