"""Checkpoints of models that are divided over processes; read into whole models as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit import atomic
from surefit.errors import RunFailedError
from surefit.memory.process_memory import trim_heap
from surefit.models.lora import is_adapted
from surefit.models.sharded_tensors import divide_alike, is_divided, unique_tensors
from surefit.processes import gather, is_main, together
from surefit.run.checkpoint_state import SHARDED_VERSION, About, write_about
from surefit.run.optimizer_state import by_index, named_state, parameter_order, unflatten_state
from surefit.run.sharded_files import SHARDS, read_replicated, read_slices, write_tensors

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

MODEL, OPTIMIZER = "model/", "optimizer/"
"""What the names of tensors begin with."""


@contextmanager
def common_folder(path: Path, later: atomic.Later | None = None) -> Iterator[Path]:
    """Give all processes one temporary folder to fill; it becomes `path` when all have ended well.

    If the block fails in one process, it fails in all, and there is no folder. Process 0 makes,
    seals and renames it.
    """
    if not is_main():
        temporary = gather("")[0]
        with together("saving a checkpoint"):
            if not temporary:
                raise RunFailedError("Process 0 could not make the folder.", "")
            yield Path(temporary)
        return
    with _announced(path, later) as folder, together("saving a checkpoint"):
        yield folder


@contextmanager
def _announced(path: Path, later: atomic.Later | None) -> Iterator[Path]:
    """The new folder of process 0, whose name the others are told; empty if it cannot be made."""
    told = False
    try:
        with atomic.new_folder(path, later, sealed=True) as folder:
            gather(str(folder))
            told = True
            yield folder
    except BaseException:
        if not told:
            gather("")
            gather(("The folder of a checkpoint could not be made.", "", 1))
        raise


def save_sharded(
    path: Path,
    module: nn.Module,
    optimizer: Optimizer,
    about: About,
    later: atomic.Later | None = None,
) -> None:
    """Write one checkpoint, whole or not at all; all processes call it.

    `about` is what state.json holds besides the optimizer.
    """
    trim_heap()  # of what the steps have freed: saving needs memory of its own
    held = saved_state(module)
    slots, rest = named_state(optimizer, _names(module))
    parameters = dict(module.named_parameters())
    for key, tensor in slots.items():
        _refuse_other_shape(key, tensor, parameters[key.split("/", 1)[1]])
    tensors = {f"{MODEL}{name}": tensor for name, (tensor, _) in held.items()}
    tensors |= {f"{OPTIMIZER}{key}": tensor for key, tensor in slots.items()}
    with common_folder(path, later) as temporary:
        write_tensors(temporary, tensors)
        if is_main():
            saved = replace(about, optimizer=rest, format_version=SHARDED_VERSION)
            write_about(temporary, saved)


def saved_state(module: nn.Module) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """The tensors that a checkpoint holds, once each, with all of their names.

    All of the module; with adapters, what is trained and the buffers.
    """
    held = unique_tensors(module)
    if not is_adapted(module):
        return held
    return {name: each for name, each in held.items() if _changes(each[0])}


def _changes(tensor: Any) -> bool:
    from torch import nn

    return tensor.requires_grad or not isinstance(tensor, nn.Parameter)


def load_sharded(path: Path, module: nn.Module, optimizer: Optimizer | None, about: About) -> None:
    """Read a sharded checkpoint into a module and its optimizer, whole or divided otherwise."""
    rest, alike = about.optimizer, read_replicated(path)
    held = {f"{MODEL}{name}": tensor for name, (tensor, _) in saved_state(module).items()}
    slots: dict[str, Any] = {}
    if optimizer is not None:
        _refuse_other_parameters(path, rest["parameters"], module, optimizer)
        slots = _slots(rest["dtypes"], alike, dict(module.named_parameters()))
    divided = {f"{OPTIMIZER}{k}": v for k, v in slots.items() if f"{OPTIMIZER}{k}" not in alike}
    read_slices(path / SHARDS, {k: v for k, v in held.items() if k not in alike} | divided)
    for name in alike.keys() & held.keys():
        held[name].detach().copy_(divide_alike(alike[name], held[name]))
    if optimizer is not None:
        order = rest["parameters"]
        numbers = by_index(rest["numbers"], order)
        state = unflatten_state(by_index(slots, order), {**rest, "numbers": numbers})
        optimizer.load_state_dict(state)


def _slots(
    dtypes: Mapping[str, str], alike: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """The optimizer's tensors: those all processes hold alike, and empty ones to fill."""
    import torch

    slots = {}
    for key, dtype in dtypes.items():
        parameter = parameters[key.split("/", 1)[1]].detach()
        known = alike.get(f"{OPTIMIZER}{key}")
        if known is None:
            slots[key] = torch.empty_like(parameter, dtype=getattr(torch, dtype))
        else:
            slots[key] = divide_alike(known, parameter) if known.dim() else known
    return slots


def load_divided(path: Path, module: nn.Module, optimizer: Optimizer | None, about: About) -> None:
    """Read a checkpoint of whole tensors into a module that is divided over processes."""
    from safetensors import safe_open

    with safe_open(str(path / "model.safetensors"), "pt") as file:
        known = set(file.keys())
        wanted = {}
        for name, (tensor, names) in saved_state(module).items():
            saved = next((each for each in names if each in known), None)
            if saved is None:
                raise RunFailedError(
                    f"{path} does not hold {name}.",
                    "Resume with the version of surefit that wrote it.",
                )
            if is_divided(tensor):
                wanted[saved] = tensor
            else:
                tensor.detach().copy_(file.get_tensor(saved))
    slots = {} if optimizer is None else _whole_slots(path, module, optimizer)
    read_slices(path, wanted | {key: slot for key, slot in slots.items() if is_divided(slot)})
    if optimizer is not None:
        optimizer.load_state_dict(unflatten_state(slots, about.optimizer))


def _whole_slots(path: Path, module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """The optimizer's tensors by `index/slot`; those to be divided are still empty."""
    import torch
    from safetensors import safe_open

    order, parameters = parameter_order(optimizer, _names(module)), dict(module.named_parameters())
    slots = {}
    with safe_open(str(path / "optimizer.safetensors"), "pt") as file:
        for key in file.keys():  # noqa: SIM118 - it is no dict
            parameter = parameters[order[int(key.split("/", 1)[0])]].detach()
            whole = file.get_tensor(key)  # mapped from the file, not read
            _refuse_other_shape(key, whole, parameter)
            divides = is_divided(parameter) and whole.dim()
            slots[key] = torch.empty_like(parameter, dtype=whole.dtype) if divides else whole
    return slots


def _names(module: nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in module.named_parameters()}


def _refuse_other_shape(key: str, tensor: Any, parameter: Any) -> None:
    if tensor.dim() and tensor.shape != parameter.shape:
        raise RunFailedError(
            f"The optimizer keeps {key} with the shape {list(tensor.shape)}, its parameter has "
            f"{list(parameter.shape)}: it cannot be divided over processes alike.",
            "Use AdamW or another optimizer whose state has the shape of the weights, or "
            "parallel=ddp.",
        )


def _refuse_other_parameters(
    path: Path, saved: list[str], module: nn.Module, optimizer: Optimizer
) -> None:
    found = parameter_order(optimizer, _names(module))
    if saved != found:
        differs = min(set(saved) ^ set(found), default="their order")
        raise RunFailedError(
            f"{path} holds the optimizer state of other parameters ({differs}).",
            "Resume with the model and the settings that the run was begun with.",
        )
