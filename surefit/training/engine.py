"""What computes the steps: Accelerate, the prepared model, the optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.checks.machine import resolve_precision
from surefit.models.frozen_precision import lower_frozen
from surefit.models.gathered_model import Skeleton
from surefit.peers.device_wait import wait_for_devices
from surefit.pipeline.evaluation import Group
from surefit.processes import gather, on_cpu
from surefit.training.divide_model import Divided
from surefit.training.same_values import take_from_first

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import nn


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
            reduced = accelerator.reduce(tensor.to(accelerator.device), reduction="sum")
            wait_for_devices(accelerator)
            return reduced.cpu()

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
