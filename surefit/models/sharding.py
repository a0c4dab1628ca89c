"""Sharded models (FSDP2): each repeated block is a unit, the rest the root unit."""

from __future__ import annotations

import copy
import os
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from surefit.core.files import remove_file
from surefit.models.call import Call
from surefit.models.quantize import quantized_on_meta
from surefit.processes import is_main, together
from surefit.speed.varlen_attention import find_pretrained

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


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
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if param_dtype is not None:
        policy = MixedPrecisionPolicy(param_dtype, torch.float32, cast_forward_inputs=False)
    for unit in [] if whole else find_units(module):
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    sharded: Any = fully_shard(module, mesh=mesh, mp_policy=policy)
    found: nn.Module = sharded
    return found


def gathered_dtype(module: nn.Module, dtype: torch.dtype | None) -> torch.dtype | None:
    """Return the precision that weights are gathered in, if not their own.

    Layers of custom modules may meet float32 inputs without autocast, and mix no dtypes.
    """
    return dtype if find_pretrained(module) is not None else None


def can_shard(module: nn.Module) -> bool:
    """Return whether every parameter has rows to shard, of floating point numbers."""
    return all(p.ndim and p.is_floating_point() for p in module.parameters())


def is_sharded(module: nn.Module) -> bool:
    """Return whether the module's parameters are sharded over processes."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # not imported: nothing is
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def own_shard(tensor: Any) -> torch.Tensor:
    """Return a tensor, or this process's shard of it."""
    own: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return own


def reshard(module: nn.Module) -> None:
    """Free what a forward pass has gathered, so that parameters are the sharded ones again."""
    for part in module.modules():
        if is_sharded(part):
            part.reshard()  # type: ignore[operator]


@contextmanager
def gathered(module: nn.Module, everything: bool) -> Iterator[None]:
    """Keep the root unit of a sharded module gathered, or all of it, while the block runs.

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
    """Return the blocks that are gathered one at a time; none contains another.

    A block that shares a parameter with the rest of the model is none: the units around it would
    hold two copies of the parameter. Neither is a bare Linear: its output is a view, which FSDP
    lets nobody change in place, as `ReLU(inplace=True)` does.
    """
    blocks = _named_blocks(module) or _listed_blocks(module)
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
    """Return the parts of every ModuleList."""
    lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
    return [block for each in lists for block in each if not isinstance(block, nn.ModuleList)]


def _outermost(blocks: list[nn.Module]) -> list[nn.Module]:
    inner = {id(part) for block in blocks for part in block.modules() if part is not block}
    kept = {id(block): block for block in blocks if id(block) not in inner}
    return list(kept.values())


def _owns_its_parameters(block: nn.Module, module: nn.Module) -> bool:
    """Return whether the block has parameters, and no module outside of it has any of them."""
    own = {id(parameter) for parameter in block.parameters()}
    parts = {id(part) for part in block.modules()}
    return bool(own) and not any(
        id(parameter) in own
        for part in module.modules()
        if id(part) not in parts
        for parameter in part.parameters(recurse=False)
    )


def is_dtensor(tensor: Any) -> bool:
    """Return whether each process holds a shard of the tensor."""
    module = sys.modules.get("torch.distributed.tensor")  # not imported: there is none
    return module is not None and isinstance(tensor, module.DTensor)


def own_rows(tensor: Any) -> range:
    """Return the rows of a tensor that this process holds: all of them, unless it is sharded."""
    if not is_dtensor(tensor):
        return range(tensor.shape[0])
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    assert tuple(shape[1:]) == tuple(tensor.shape[1:]), f"not by rows: {tensor.placements}"
    return range(offset[0], offset[0] + shape[0])


def sample_shard(tensor: Any, step: int) -> Any:
    """Return every `step`-th value of the flattened tensor, of those that this process holds.

    One after the other in the order of the processes, the samples are those of the whole tensor.
    """
    flat = own_shard(tensor).reshape(-1)
    if not is_dtensor(tensor):
        return flat[::step]
    before = own_rows(tensor).start * (tensor.numel() // max(1, tensor.shape[0]))
    return flat[-before % step :: step]


def gather_whole(tensor: Any) -> Any:
    """Return the whole tensor; all processes that hold a shard must call it."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def unique_tensors(module: nn.Module) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """Return each tensor of a module's state once, by its first name, with all of its names.

    The tensors are the module's own; tied weights are one tensor of several names.
    """
    reshard(module)
    names: dict[int, list[str]] = {}
    tensors: dict[int, Any] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
        tensors[id(tensor)] = tensor
    return {found[0]: (tensors[key], tuple(found)) for key, found in names.items()}


def meta_copy(module: nn.Module, call: Call) -> tuple[nn.Module, Call]:
    """Return a copy of the model on the meta device, and its Call.

    Integer buffers keep their values, on the CPU: models branch on them.
    """
    known: dict[int, Any] = {}
    weight: Any
    for weight in module.parameters():
        if getattr(weight, "quant_state", None) is not None:
            made, state = quantized_on_meta(weight)
            known |= {id(weight): made, id(weight.quant_state): state}
            continue
        empty = torch.empty_like(weight, device="meta")
        known[id(weight)] = torch.nn.Parameter(empty, requires_grad=weight.requires_grad)
    for buffer in module.buffers():
        if buffer.is_floating_point() and not buffer.is_meta:
            known[id(buffer)] = torch.empty_like(buffer, device="meta")
        else:
            known[id(buffer)] = buffer if buffer.is_meta else buffer.clone().cpu()
    copied: tuple[nn.Module, Call] = copy.deepcopy((module, call), known)
    return copied


class Skeleton:
    """A module as it was before it was sharded, without values: a sharded one cannot be copied."""

    def __init__(self, module: nn.Module) -> None:
        self.module, _ = meta_copy(module, Call({}))

    def gather(self, module: nn.Module, folder: Path) -> nn.Module:
        """Return the whole module; all processes call it, and get it with the values on process 0
        only.

        The values are in files that have no name: they take space in `folder` until they are freed.
        """
        for tensor, names in unique_tensors(module).values():
            whole = gather_whole(tensor.detach())
            with together("gathering the model"):
                if is_main():
                    assign(self.module, names, _on_disk(whole, folder).copy_(whole))
            del whole
        if is_main():
            self._take_buffers(module)
        return self.module

    def allocate(self, module: nn.Module, folder: Path) -> nn.Module:
        """Return the whole module with empty weights, to be read from a checkpoint by one process
        alone.

        The values are kept as by `gather`.
        """
        for tensor, names in unique_tensors(self.module).values():
            if tensor.is_meta:
                assign(self.module, names, _on_disk(tensor, folder))
        self._take_buffers(module)
        return self.module

    def _take_buffers(self, module: nn.Module) -> None:
        """Buffers are whole in each process; some are in no state."""
        for name, buffer in module.named_buffers():
            assign(self.module, (name,), buffer)


def _on_disk(tensor: Any, folder: Path) -> Any:
    """An empty tensor of this kind in a file, so that the system may free the memory it takes."""
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    path = folder / f".gathered.{uuid.uuid4().hex[:8]}.tmp"
    try:
        with path.open("xb") as file:  # a full disk is an error here, and a signal once mapped
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, tensor.numel() * tensor.element_size())
            else:
                file.truncate(tensor.numel() * tensor.element_size())
        mapped: Any = torch.from_file(str(path), True, tensor.numel(), dtype=tensor.dtype)
    finally:
        remove_file(path)  # it stays mapped; a killed process leaves nothing
    return mapped.view(tensor.shape)


def assign(module: nn.Module, names: Sequence[str], value: Any) -> Any:
    """Put one tensor in all of its places, as one parameter if they hold one, and return it."""
    for name in names:
        place, _, last = name.rpartition(".")
        owner = module.get_submodule(place)
        if last in owner._buffers:
            owner._buffers[last] = value
            continue
        had = owner._parameters[last]
        if had is not None and not isinstance(value, nn.Parameter):
            value = nn.Parameter(value, had.requires_grad)
        owner._parameters[last] = value
    return value


def saved_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return buffers in the state of a module; not what layers add to it, as quantized ones do."""
    state = module.state_dict(keep_vars=True)
    buffers = module.named_buffers(remove_duplicate=False)
    return {name: buffer for name, buffer in buffers if name in state}


def trained_tensors(module: nn.Module) -> dict[str, Any]:
    """Return the weights that are trained, and the buffers: the module's own tensors."""
    weights = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return {**weights, **saved_buffers(module)}
