"""Divides the model of a run over its processes (`parallel: fsdp`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from surefit.errors import UsageError
from surefit.kernels.varlen_attention import find_pretrained
from surefit.models.gathered_model import Skeleton
from surefit.models.load_shards import fill_divided, late_weights
from surefit.models.shard_module import shard_module
from surefit.training.same_values import take_from_first
from surefit.training.used_parameters import UsedParameters

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn


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
