"""Divides a model over processes (FSDP2): each repeated block is a unit, the rest the root unit.

The parameters of a unit are gathered before its forward and backward pass and freed after it, so
that a process holds one block at a time beside its own shards. The root unit (embeddings, tied
head, last norm) stays gathered from its forward to its backward pass.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

LARGE_SHARE = 0.1
"""Share of all parameters from which a child is a unit, in a module without repeated blocks."""


def shard_module(
    module: nn.Module,
    mesh: DeviceMesh,
    param_dtype: torch.dtype | None = None,
    *,
    whole: bool = False,
) -> nn.Module:
    """Shard the module in place over the processes of the mesh, and return it.

    Parameters become new objects (DTensors): make the optimizer afterwards. With `param_dtype`,
    parameters are gathered in it, and gradients are summed in float32. With `whole`, there is the
    root unit only.
    """
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if param_dtype is not None:
        policy = MixedPrecisionPolicy(param_dtype, torch.float32, cast_forward_inputs=False)
    for unit in [] if whole else find_units(module):
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    sharded: Any = fully_shard(module, mesh=mesh, mp_policy=policy)
    found: nn.Module = sharded
    return found


def can_be_divided(module: nn.Module) -> bool:
    """Whether every parameter has rows to divide, of floating point numbers."""
    return all(p.ndim and p.is_floating_point() for p in module.parameters())


def is_sharded(module: nn.Module) -> bool:
    """Whether the module's parameters are divided over processes."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # not imported: nothing is
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def own_shard(tensor: Any) -> torch.Tensor:
    """A tensor, or this process's shard of it."""
    own: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return own


def reshard(module: nn.Module) -> None:
    """Free what a forward pass has gathered, so that parameters are the divided ones again."""
    for part in module.modules():
        if is_sharded(part):
            part.reshard()  # type: ignore[operator]


@contextmanager
def gathered(module: nn.Module, everything: bool) -> Iterator[None]:
    """Keep the root unit of a divided module gathered, or all of it, while the block runs.

    For calls that do not begin with the module's forward, such as `generate`.
    """
    parts: list[Any] = [part for part in module.modules() if is_sharded(part)]
    kept: list[Any] = parts if everything else [part for part in parts if part is module]
    units: list[Any] = [part for part in kept if part is not module]
    try:
        for part in kept:
            part.unshard()
        for part in units:
            part.set_reshard_after_forward(False, recurse=False)
        yield
    finally:
        for part in units:
            part.set_reshard_after_forward(True, recurse=False)
        reshard(module)


def find_units(module: nn.Module) -> list[nn.Module]:
    """The blocks that are gathered one at a time; none contains another.

    A block that shares a parameter with the rest of the model is none: the units around it would
    hold two copies of the parameter. Neither is a bare Linear: its output is a view, which FSDP
    lets nobody change in place, as `ReLU(inplace=True)` does.
    """
    from torch import nn

    blocks = _named_blocks(module) or _listed_blocks(module) or _large_children(module)
    outer = _outermost([b for b in blocks if b is not module and not isinstance(b, nn.Linear)])
    return [block for block in outer if _owns_its_parameters(block, module)]


def _named_blocks(module: nn.Module) -> list[nn.Module]:
    """The layers that a transformers model names as not to be split, if it has several of them."""
    named: set[str] = set()
    for part in module.modules():
        # From its class: peft passes attributes of the model inside it through.
        named |= set(getattr(type(part), "_no_split_modules", None) or ())
    found = [part for part in module.modules() if type(part).__name__ in named]
    several = Counter(map(type, found))
    return [part for part in found if several[type(part)] > 1]


def _listed_blocks(module: nn.Module) -> list[nn.Module]:
    """The parts of every ModuleList."""
    from torch import nn

    lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
    return [block for each in lists for block in each if not isinstance(block, nn.ModuleList)]


def _large_children(module: nn.Module) -> list[nn.Module]:
    least = LARGE_SHARE * _size(module)
    # Of a part that is nearly all of the module, the parts within it are taken.
    large = [p for p in _callable_parts(module) if least <= _size(p) <= _size(module) / 2]
    return [part for part in large if part is not module]


def _callable_parts(module: nn.Module) -> Iterator[nn.Module]:
    """The module and its parts, but for those of torch's layers, which read them without a call."""
    from torch import nn

    yield module
    is_layer = type(module).__module__.startswith("torch.nn.")
    if not is_layer or isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        for child in module.children():
            yield from _callable_parts(child)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _outermost(blocks: list[nn.Module]) -> list[nn.Module]:
    inner = {id(part) for block in blocks for part in block.modules() if part is not block}
    kept = {id(block): block for block in blocks if id(block) not in inner}
    return list(kept.values())


def _owns_its_parameters(block: nn.Module, module: nn.Module) -> bool:
    """Whether the block has parameters, and no module outside of it has any of them."""
    own = {id(parameter) for parameter in block.parameters()}
    parts = {id(part) for part in block.modules()}
    return bool(own) and not any(
        id(parameter) in own
        for part in module.modules()
        if id(part) not in parts
        for parameter in part.parameters(recurse=False)
    )
