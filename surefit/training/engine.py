"""What computes the steps: Accelerate, the prepared model, the optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.checks.machine import resolve_precision
from surefit.errors import UsageError
from surefit.kernels.varlen_attention import find_pretrained
from surefit.models.frozen_precision import lower_frozen
from surefit.models.load_shards import fill_divided, late_weights
from surefit.models.sharding import Skeleton, is_sharded, shard_module
from surefit.models.trained_module import saved_buffers
from surefit.pipeline.evaluation import Group
from surefit.processes import gather, num_processes, object_group, on_cpu

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import nn


def take_from_first(tensors: Iterable[torch.Tensor]) -> None:
    """Let all processes take the tensors of process 0, one by one; those without values stay."""
    for tensor in tensors:
        if not tensor.is_meta:
            _send(_as_bytes(tensor), [tensor])


def take_together(tensors: Iterable[torch.Tensor]) -> None:
    """The same for small tensors, all those of a device at once."""
    import torch

    # Wide values first: a value begins at a multiple of its size.
    ordered = sorted(tensors, key=lambda each: (str(each.device), -each.itemsize))
    for _, group in groupby(ordered, key=lambda each: each.device):
        found = list(group)
        _send(torch.cat([_as_bytes(each) for each in found]), found)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _send(sent: torch.Tensor, into: list[torch.Tensor]) -> None:
    import torch
    from torch import distributed

    distributed.broadcast(sent, 0, group=object_group() if sent.device.type == "cpu" else None)
    parts = torch.split(sent, [each.nbytes for each in into])
    with torch.no_grad():
        for tensor, part in zip(into, parts, strict=True):
            tensor.copy_(part.view(tensor.dtype).view(tensor.shape))


class LastBuffers:
    """Copies of what a forward pass changes and a checkpoint holds, such as batch norm statistics.

    A step that failed has changed them; the weights only change when the optimizer steps.
    """

    def __init__(self, module: nn.Module) -> None:
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = [
            (buffer, buffer.clone()) for buffer in saved_buffers(module).values()
        ]

    def keep(self) -> None:
        """Note that a step is finished; all processes take the buffers of the first."""
        if num_processes() > 1:
            take_together(buffer for buffer, _ in self._kept)
        for buffer, before in self._kept:
            before.copy_(buffer)

    def restore(self) -> None:
        """Put back what the last finished step left."""
        import torch

        with torch.no_grad():
            for buffer, before in self._kept:
                buffer.copy_(before)


@contextmanager
def unchanged_buffers(module: nn.Module) -> Iterator[None]:
    """After the block, the module's buffers are as before."""
    import torch

    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


class UsedParameters:
    """Notes gradients of the gathered parameters, which exist while a unit is in use."""

    def __init__(self, module: nn.Module) -> None:
        self._shards = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self._used: set[str] = set()
        self._watched: set[int] = set()
        for name, part in module.named_modules():
            if is_sharded(part):
                part.register_forward_pre_hook(self._watch(f"{name}." if name else ""))

    def _watch(self, prefix: str) -> Any:
        """Watch the parameters of a unit once they are gathered, which FSDP does before this."""

        def watch(unit: nn.Module, _: Any) -> None:
            weights: list[tuple[str, Any]] = list(unit.named_parameters())
            for name, parameter in weights:
                is_new = id(parameter) not in self._watched and not hasattr(parameter, "to_local")
                if is_new and parameter.requires_grad:
                    self._watched.add(id(parameter))
                    parameter.register_post_accumulate_grad_hook(self._note(prefix + name))

        return watch

    def _note(self, name: str) -> Any:
        def note(_: Any) -> None:
            self._used.add(name)

        return note

    def drop_others(self) -> None:
        """Drop the gradients that no process has computed; all call it after a step's passes."""
        import torch
        from torch import distributed

        device = next(iter(self._shards.values())).device
        used = torch.tensor([name in self._used for name in self._shards], device=device).int()
        distributed.all_reduce(used, distributed.ReduceOp.MAX)
        for shard, was_used in zip(self._shards.values(), used.tolist(), strict=True):
            if not was_used:
                shard.grad = None
        self._used.clear()


@dataclass(frozen=True)
class Divided:
    """What is known of a module that was divided."""

    skeleton: Skeleton
    """What it was; it is gathered into it to be saved."""
    used: UsedParameters | None = None
    """Notes which parameters get a gradient, where this may differ from step to step."""


def divide(
    accelerator: Accelerator,
    module: nn.Module,
    parallel: str,
    choice: Mapping[str, Any],
    seed: int = 0,
) -> Divided | None:
    """Divide the module over the processes, in place, if `parallel` is fsdp and there are several.

    Its parameters become new objects, so that the optimizer is made afterwards. A module without
    values gets them from its files; what is new is drawn from the seed. `choice` is that of the
    plan (`plan/choose_parallel.py`).
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    if parallel != "fsdp" or accelerator.num_processes == 1:
        return None
    skeleton, late = Skeleton(module), late_weights(module)
    places = None if late is None else late.by_name(module)
    take_from_first(chain(module.parameters(), module.buffers()))
    accelerator.prepare_model(module, device_placement=False, evaluation_mode=True)  # autocast
    low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(accelerator.mixed_precision)
    # Layers of other modules may meet float32 inputs without autocast, and mix no dtypes.
    low = low if find_pretrained(module) is not None else None
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    sharded: Any = shard_module(module, mesh, low, whole=bool(choice.get("whole")))
    if places is not None:
        fill_divided(module, places, accelerator.device, seed, skeleton.module)
    if not choice.get("unused", True):
        return Divided(skeleton)
    sharded.set_reduce_scatter_unused_params(True)
    return Divided(skeleton, UsedParameters(module))


@contextmanager
def with_shards(optimizer: Any, module: nn.Module) -> Iterator[None]:
    """Give an optimizer that was passed in the parameters that the block has divided."""
    from torch.optim import Optimizer

    before = dict(module.named_parameters())
    yield
    now = dict(module.named_parameters())
    divided = {id(before[name]): now[name] for name in before if before[name] is not now[name]}
    if not divided or not isinstance(optimizer, Optimizer):
        return
    if optimizer.state:
        raise UsageError(
            "The optimizer that was passed in has a state already, which parallel=fsdp does not "
            "divide.",
            "Pass one that has not stepped yet, or a function that makes it from parameters.",
        )
    for group in optimizer.param_groups:
        group["params"] = [divided.get(id(each), each) for each in group["params"]]


@dataclass(frozen=True)
class Engine:
    """Accelerate with the model and the optimizer as it prepared them."""

    accelerator: Accelerator
    model: Any
    optimizer: Any
    """Accelerate's wrapper where it scales fp16 gradients, else the plain optimizer."""
    plain_optimizer: Any
    divided: Divided | None = None
    """What is known of a module that was divided over processes."""

    @property
    def is_sharded(self) -> bool:
        """Whether processes hold shares of the model: then each forward pass is one of all."""
        return self.divided is not None

    @property
    def skeleton(self) -> Skeleton | None:
        """What a divided module was; it is gathered into it to be saved."""
        return self.divided.skeleton if self.divided is not None else None

    def accumulating(self, is_last: bool) -> AbstractContextManager[Any]:
        """A micro-batch of a step; gradients are summed over processes in the last one.

        Those of a divided model are summed in each, so that no process ever holds all of them.
        """
        if is_last or self.is_sharded:
            return nullcontext()
        waits: AbstractContextManager[Any] = self.accelerator.no_sync(self.model)
        return waits

    @property
    def group(self) -> Group:
        """The processes that train together, for sums and lists over all of them."""
        accelerator = self.accelerator
        if accelerator.num_processes == 1:
            return Group()

        def reduce(tensor: Any) -> Any:
            return accelerator.reduce(tensor.to(accelerator.device), reduction="sum").cpu()

        index, size = accelerator.process_index, accelerator.num_processes
        return Group(index, size, reduce, _gather_lists)


def _gather_lists(own: list[Any]) -> list[Any]:
    """The lists of all processes as one: through the CPU, not through the memory of devices."""
    return [each for part in gather(own) for each in part]


def make_engine(
    accelerator: Accelerator,
    module: nn.Module,
    optimizer: Any,
    divided: Divided | None = None,
    frozen: torch.dtype | None = None,
) -> Engine:
    """Let Accelerate prepare model and optimizer; a divided model stays as it is.

    `frozen` is the precision that frozen matrices are cast to.
    """
    lower_frozen(module, frozen)
    if divided is not None:
        model, prepared = module, accelerator.prepare_optimizer(optimizer)
    else:
        with warnings.catch_warnings():  # Accelerate knows only torch's old name of the setting
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            model, prepared = accelerator.prepare(module, optimizer)
        if accelerator.num_processes > 1:
            take_from_first(module.buffers())  # DDP does so for weights only
    # Accelerate's wrapper scales fp16 gradients; without that it only costs time.
    stepped = prepared if accelerator.scaler is not None else prepared.optimizer
    return Engine(accelerator, model, stepped, optimizer, divided)


def make_accelerator(
    precision: str = "auto",
    trackers: Sequence[str] = (),
    folder: Path | None = None,
    may_skip: bool = True,
) -> Accelerator:
    """Accelerate with everything it would do to batches, losses and schedules left to us.

    `may_skip` is whether a parameter may get no gradient in some micro-batch.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState

    precision = resolve_precision(precision)
    AcceleratorState._reset_state()  # an earlier run in this process may have left its precision
    return Accelerator(
        cpu=on_cpu(),
        gradient_accumulation_steps=1,
        mixed_precision="no" if precision == "fp32" else precision,
        log_with=list(trackers) or None,
        project_dir=str(folder) if folder is not None else None,
        kwargs_handlers=[
            DistributedDataParallelKwargs(
                find_unused_parameters=may_skip,
                gradient_as_bucket_view=True,  # else gradients are held twice
                broadcast_buffers=False,  # the loop does so after each step
            )
        ],
    )
