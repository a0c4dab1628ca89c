"""Tensors that are divided over processes (torch's DTensor): found, read and gathered."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from surefit.models.shard_module import own_shard, reshard

if TYPE_CHECKING:
    from torch import nn


def is_divided(tensor: Any) -> bool:
    """Whether each process holds a share of the tensor."""
    module = sys.modules.get("torch.distributed.tensor")  # not imported: there is none
    return module is not None and isinstance(tensor, module.DTensor)


def own_rows(tensor: Any) -> range:
    """The rows of a tensor that this process holds: all of them, unless it is divided."""
    if not is_divided(tensor):
        return range(tensor.shape[0])
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    assert tuple(shape[1:]) == tuple(tensor.shape[1:]), f"not by rows: {tensor.placements}"
    return range(offset[0], offset[0] + shape[0])


def sample_share(tensor: Any, step: int) -> Any:
    """Every `step`-th value of the flattened tensor, of those that this process holds.

    One after the other in the order of the processes, the samples are those of the whole tensor.
    """
    flat = own_shard(tensor).reshape(-1)
    if not is_divided(tensor):
        return flat[::step]
    before = own_rows(tensor).start * (tensor.numel() // max(1, tensor.shape[0]))
    return flat[-before % step :: step]


def gather_whole(tensor: Any) -> Any:
    """The whole tensor; all processes that hold a share must call it."""
    return tensor.full_tensor() if is_divided(tensor) else tensor


def divide_alike(whole: Any, like: Any) -> Any:
    """The tensor, divided over processes as another one is; all hold the same whole tensor."""
    if not is_divided(like) or is_divided(whole):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )


def unique_tensors(module: nn.Module) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """Each tensor of a module's state once, by its first name, with all of its names.

    The tensors are the module's own; tied weights are one tensor of several names.
    """
    reshard(module)
    names: dict[int, list[str]] = {}
    tensors: dict[int, Any] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
        tensors[id(tensor)] = tensor
    return {found[0]: (tensors[key], tuple(found)) for key, found in names.items()}
