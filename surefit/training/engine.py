"""What computes the steps: Accelerate, the prepared model, the optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.checks.machine import usable_precision
from surefit.errors import UsageError
from surefit.models.load_shards import fill_shards, late_weights
from surefit.models.lora import frozen_as_trained, lower_frozen
from surefit.models.lora_files import has_named_base
from surefit.models.sharding import (
    Skeleton,
    gathered_dtype,
    is_sharded,
    saved_buffers,
    shard_module,
)
from surefit.pipeline.evaluation import Group
from surefit.pipeline.open_pipeline import Parallel
from surefit.pipeline.step import Processes
from surefit.processes import gather, num_processes, object_group, on_cpu
from surefit.speed.compiling import compile_layers
from surefit.speed.numerics import align_weights, deterministic_algorithms
from surefit.speed.precision import lower_dtype, resolve_precision

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import nn

    from surefit.run.run_folder import Run


BUCKET_BYTES = 1 << 20
"""Small tensors are sent together; a larger one is sent alone, without a copy."""


def take_from_first(tensors: Iterable[torch.Tensor]) -> None:
    """Let all processes take the tensors of process 0; those without values stay."""
    import torch
    from torch._C._distributed_c10d import _broadcast_coalesced
    from torch.distributed.distributed_c10d import _get_default_group

    own = [each.detach() for each in tensors if not each.is_meta]
    for kind in sorted({each.device.type for each in own}):
        part = [each for each in own if each.device.type == kind]
        # As bytes: gloo does not send every dtype.
        sent = [each.contiguous().reshape(-1).view(torch.uint8) for each in part]
        group = object_group() if kind == "cpu" else _get_default_group()
        _broadcast_coalesced(group, sent, BUCKET_BYTES, 0)
        for each, values in zip(part, sent, strict=True):
            if not each.is_contiguous():
                each.copy_(values.view(each.dtype).view(each.shape))


class LastBuffers:
    """Copies of what a forward pass changes and a checkpoint holds, such as batch norm statistics.

    A step that failed has changed them; the weights only change when the optimizer steps.
    """

    def __init__(self, module: nn.Module) -> None:
        self.is_updating = False
        """Whether the optimizer is changing the weights, so that they belong to no step."""
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = [
            (buffer, buffer.clone()) for buffer in saved_buffers(module).values()
        ]

    def keep(self) -> None:
        """Note that a step is finished; all processes take the buffers of the first."""
        if num_processes() > 1:
            take_from_first(buffer for buffer, _ in self._kept)
        for buffer, before in self._kept:
            before.copy_(buffer)

    def restore(self) -> None:
        """Put back what the last finished step left."""
        import torch

        with torch.no_grad():
            for buffer, before in self._kept:
                buffer.copy_(before)


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
class Sharded:
    """What is known of a module that was sharded."""

    skeleton: Skeleton
    """What it was; it is gathered into it to be saved."""
    used: UsedParameters | None = None
    """Notes which parameters get a gradient, where this may differ from step to step."""


def shard(
    accelerator: Accelerator,
    module: nn.Module,
    parallel: str,
    choice: Parallel,
    seed: int = 0,
) -> Sharded | None:
    """Shard the module over the processes, in place, if `parallel` is fsdp and there are several.

    Its parameters become new objects, so that the optimizer is made afterwards. A module without
    values gets them from its files; what is new is drawn from the seed. `choice` is that of the
    plan (`plan/choose_parallel.py`).
    """
    from torch.distributed.device_mesh import init_device_mesh

    if parallel != "fsdp" or accelerator.num_processes == 1:
        return None
    skeleton, places = Skeleton(module), late_weights(module)
    take_from_first(chain(module.parameters(), module.buffers()))
    accelerator.prepare_model(module, device_placement=False, evaluation_mode=True)  # autocast
    low = gathered_dtype(module, lower_dtype(accelerator.mixed_precision))
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    sharded: Any = shard_module(module, mesh, low, whole=choice.whole)
    if places is not None:
        fill_shards(module, places, accelerator.device, seed, skeleton.module)
    if not choice.unused:
        return Sharded(skeleton)
    sharded.set_reduce_scatter_unused_params(True)
    return Sharded(skeleton, UsedParameters(module))


@contextmanager
def with_shards(optimizer: Any, module: nn.Module) -> Iterator[None]:
    """Give an optimizer that was passed in the parameters that the block has sharded."""
    from torch.optim import Optimizer

    before = dict(module.named_parameters())
    yield
    now = dict(module.named_parameters())
    shards = {id(before[name]): now[name] for name in before if before[name] is not now[name]}
    if not shards or not isinstance(optimizer, Optimizer):
        return
    if optimizer.state:
        raise UsageError(
            "The optimizer that was passed in has a state already, which parallel=fsdp does not "
            "shard.",
            "Pass one that has not stepped yet, or a function that makes it from parameters.",
        )
    for group in optimizer.param_groups:
        group["params"] = [shards.get(id(each), each) for each in group["params"]]


@dataclass(frozen=True)
class Engine:
    """Accelerate with the model and the optimizer as it prepared them."""

    accelerator: Accelerator
    model: Any
    optimizer: Any
    """Accelerate's wrapper where it scales fp16 gradients, else the plain optimizer."""
    plain_optimizer: Any
    sharded: Sharded | None = None
    """What is known of a module that was sharded over processes."""

    @cached_property
    def buffers(self) -> LastBuffers:
        """Return the buffers that the last finished step left."""
        return LastBuffers(self.model)

    @property
    def is_sharded(self) -> bool:
        """Return whether processes hold shares of the model: then all take part in each pass."""
        return self.sharded is not None

    @property
    def skeleton(self) -> Skeleton | None:
        """Return what a sharded module was; it is gathered into it to be saved."""
        return self.sharded.skeleton if self.sharded is not None else None

    def accumulating(self, is_last: bool) -> AbstractContextManager[Any]:
        """Delay the sum of gradients over processes until the last micro-batch of a step.

        Those of a sharded model are summed in each, so that no process ever holds all of them.
        """
        if is_last or self.is_sharded:
            return nullcontext()
        waits: AbstractContextManager[Any] = self.accelerator.no_sync(self.model)
        return waits

    @property
    def processes(self) -> Processes:
        """Return what one training step needs of the engine."""
        used = self.sharded.used if self.sharded is not None else None
        return Processes(
            self.model,
            self.accelerator.num_processes,
            self._sum,
            self.accumulating,
            self.is_sharded,
            used.drop_others if used is not None else lambda: None,
            self.accelerator.backward if self.accelerator.scaler is not None else None,
        )

    def _sum(self, *numbers: float) -> list[float]:
        """Return the sum of each number over all processes; all of them call it."""
        import torch

        accelerator = self.accelerator
        if accelerator.num_processes == 1:
            return list(numbers)
        wide = torch.float32 if accelerator.device.type == "mps" else torch.float64
        own = torch.tensor(numbers, dtype=wide, device=accelerator.device)
        summed: list[float] = accelerator.reduce(own, reduction="sum").tolist()
        return summed

    @property
    def group(self) -> Group:
        """Return the processes that train together, for sums and lists over all of them."""
        accelerator = self.accelerator
        if accelerator.num_processes == 1:
            return Group()

        def reduce(tensor: Any) -> Any:
            return accelerator.reduce(tensor.to(accelerator.device), reduction="sum").cpu()

        def join(own: list[Any]) -> list[Any]:  # through the CPU, not the memory of devices
            return [each for part in gather(own) for each in part]

        return Group(accelerator.process_index, accelerator.num_processes, reduce, join)


def make_engine(
    accelerator: Accelerator,
    module: nn.Module,
    optimizer: Any,
    sharded: Sharded | None = None,
    frozen: torch.dtype | None = None,
) -> Engine:
    """Let Accelerate prepare model and optimizer; a sharded model stays as it is.

    `frozen` is the precision that frozen matrices are cast to.
    """
    lower_frozen(module, frozen)
    if sharded is not None:
        model, prepared = module, accelerator.prepare_optimizer(optimizer)
    else:
        with warnings.catch_warnings():  # Accelerate knows only torch's old name of the setting
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            model, prepared = accelerator.prepare(module, optimizer)
        if accelerator.num_processes > 1:
            take_from_first(module.buffers())  # DDP does so for weights only
    # Accelerate's wrapper scales fp16 gradients; without that it only costs time.
    stepped = prepared if accelerator.scaler is not None else prepared.optimizer
    return Engine(accelerator, model, stepped, optimizer, sharded)


def make_accelerator(
    precision: str = "auto",
    trackers: Sequence[str] = (),
    folder: Path | None = None,
    may_skip: bool = True,
) -> Accelerator:
    """Return Accelerate without what it would do to batches, losses and schedules.

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


@contextmanager
def training_numerics(run: Run, module: nn.Module, exactly: bool = False) -> Iterator[str]:
    """Let the module of a finished run compute as in training; gives the precision.

    The precision is that of the run, or float32 if this machine cannot compute in it. With
    `exactly`, results are those of training to the bit: weights are aligned as in training, and
    layers are compiled if training compiled them.
    """
    import torch

    choices = run.choices
    precision = usable_precision(run.plan.get("precision", run.config.precision))
    if exactly and not has_named_base(run.model_path):
        align_weights(module)
    if exactly and choices.compile is not None and choices.compile.compiled:
        compile_layers(module)
    frozen = choices.frozen if exactly and precision != "fp32" else None
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(frozen or "")
    with deterministic_algorithms(run.config.deterministic), frozen_as_trained(module, dtype):
        if precision == "fp32" and not torch.accelerator.is_available():
            yield precision
            return
        accelerator = make_accelerator(precision)
        prepared = "_original_forward" in vars(module)  # a module that was trained in this process
        accelerator.prepare_model(module, evaluation_mode=True)
        try:
            yield precision
        finally:
            if not prepared:
                accelerator.unwrap_model(module, keep_fp32_wrapper=False)
