"""Checkpoints: weights, optimizer and place in the run, as safetensors and JSON, no pickle.

    step-00000200/
      state.json                           step, best step, optimizer settings
      index.json                           the files that hold each tensor
      model-00001-of-00002.safetensors     weights and buffers of shard 1 …
      optimizer-00001-of-00002.safetensors … and its optimizer state
      digests.json                         size and digest of each file

With `parallel: fsdp`, each process writes a shard: its rows of each tensor. Otherwise there is one.
What all processes hold alike (buffers, step counters) is in the first shard. Any number of
processes, whether or not they shard the model, can read a checkpoint of any other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.core import files
from surefit.core.foreign import check_names, read_json
from surefit.errors import RunFailedError, to_resume
from surefit.models.lora import base_fingerprint, is_adapted
from surefit.models.optimizer import AVERAGE
from surefit.models.sharding import (
    is_dtensor,
    is_sharded,
    own_rows,
    own_shard,
    reshard,
    trained_tensors,
)
from surefit.processes import gather, is_main, num_processes, process_index, together
from surefit.run.choose_checkpoint import (
    FORMAT_VERSION,
    About,
    State,
    checkpoint_damage,
    checkpoint_path,
    list_checkpoints,
    read_about,
    write_about,
)

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

INDEX = "index.json"


def save_checkpoint(
    folder: Path,
    module: nn.Module,
    optimizer: Optimizer,
    scaler: dict[str, Any],
    state: State,
    later: files.Later | None = None,
) -> None:
    """Write one checkpoint, whole or not at all; of a model with adapters, what is trained.

    All processes that share a sharded model call it.
    """
    sharded = is_sharded(module)
    with together("checking what is to be saved") if sharded else nullcontext():
        check_finite(module, optimizer, state.step)
        _refuse_deleted(folder, state.step)
        slots, rest = _flatten(optimizer)
    path = checkpoint_path(folder, state.step)
    base = base_fingerprint(module) if is_adapted(module) else None
    tensors = {"model": saved_tensors(module), "optimizer": slots}
    shard, num_shards = (process_index(), num_processes()) if sharded else (0, 1)
    make_folder = _shared_folder if sharded else files.new_folder
    with make_folder(path, later, sealed=True) as temporary:
        for kind, named in tensors.items():
            _write_shard(temporary / _file(kind, shard, num_shards), named, shard)
        if shard == 0:
            _write_index(temporary, tensors, num_shards)
            write_about(temporary, About(state, rest, scaler, base))


@contextmanager
def _shared_folder(path: Path, later: files.Later | None, sealed: bool) -> Iterator[Path]:
    """Make a folder that all processes fill; if one of them fails, there is none."""
    with ExitStack() as stack:
        own: Path | None = None
        with together("making the folder of a checkpoint"):
            if is_main():
                own = stack.enter_context(files.new_folder(path, later, sealed))
        temporary = gather(own)[0]
        assert temporary is not None
        with together("saving a checkpoint"):
            yield temporary


def saved_tensors(module: nn.Module) -> dict[str, Any]:
    """Return the module's own tensors that a checkpoint holds, each once, by its first name.

    All of them; with adapters, those that are trained, and the buffers.
    """
    return {name: tensor for name, (first, tensor) in _named(module).items() if name == first}


def _named(module: nn.Module) -> dict[str, tuple[str, Any]]:
    """Return what a checkpoint holds, by all names: each tensor with its first name."""
    reshard(module)
    held = trained_tensors(module) if is_adapted(module) else module.state_dict(keep_vars=True)
    first: dict[int, str] = {}
    return {name: (first.setdefault(id(each), name), each) for name, each in held.items()}


def _flatten(optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the optimizer state as tensors by `index/slot`, and the rest as plain values."""
    import torch

    state = optimizer.state_dict()
    parameters = _parameters(optimizer)
    tensors: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for index, slots in state["state"].items():
        for slot, value in slots.items():
            key = f"{index}/{slot}"
            if not isinstance(value, torch.Tensor):
                numbers[key] = value
                continue
            tensors[key] = value
            if is_dtensor(parameters[index]):
                _refuse_other_shape(slot, value, parameters[index])
    groups = [
        {key: list(value) if isinstance(value, tuple) else value for key, value in group.items()}
        for group in state["param_groups"]
    ]
    return tensors, {"numbers": numbers, "param_groups": groups}


def _parameters(optimizer: Optimizer) -> list[Any]:
    """Return the parameters in the order of the optimizer's state."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def _refuse_other_shape(slot: str, tensor: Any, parameter: Any) -> None:
    if tensor.dim() and tensor.shape != parameter.shape:
        raise RunFailedError(
            f"The optimizer keeps {slot} with the shape {list(tensor.shape)}, its parameter has "
            f"{list(parameter.shape)}: it cannot be sharded alike.",
            "Use AdamW or another optimizer whose state has the shape of the weights, or "
            "parallel=ddp.",
        )


def _file(kind: str, shard: int, num_shards: int) -> str:
    return f"{kind}-{shard + 1:05d}-of-{num_shards:05d}.safetensors"


def _write_shard(path: Path, tensors: Mapping[str, Any], shard: int) -> None:
    """Write this process's rows of sharded tensors; the first shard also has all others."""
    from safetensors.torch import save_file

    written: dict[str, Any] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        if shard and not is_dtensor(tensor):
            continue
        own = own_shard(tensor).detach().cpu().contiguous()
        storage = own.untyped_storage().data_ptr()
        written[name] = own.clone() if storage in storages else own  # no two may share memory
        storages.add(storage)
    save_file(written, str(path))
    if shard:  # process 0 flushes what it wrote itself; the folder may be on a network
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _write_index(folder: Path, tensors: Mapping[str, Mapping[str, Any]], num_shards: int) -> None:
    named_files = {
        kind: {
            name: [_file(kind, n, num_shards) for n in range(num_shards if is_dtensor(t) else 1)]
            for name, t in named.items()
        }
        for kind, named in tensors.items()
    }
    text = json.dumps({"format_version": FORMAT_VERSION, **named_files}, indent=1)
    (folder / INDEX).write_text(text, encoding="utf-8")


def _refuse_deleted(folder: Path, step: int) -> None:
    if not folder.is_dir():
        raise RunFailedError(
            f"{folder} was deleted while the run was training, so step {step} cannot be saved.",
            "Start the run again, and leave its folder where it is while it trains.",
        )


def check_finite(module: nn.Module, optimizer: Optimizer, step: int) -> None:
    """Refuse to save trained weights, or optimizer state, with NaN or infinite values."""
    reshard(module)
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    states = [
        (f"{key} of {name}", value)
        for name, parameter in named
        for key, value in optimizer.state.get(parameter, {}).items()
    ]
    wrong = [name for name, tensor in (*named, *states) if not _is_finite(tensor)]
    if wrong:
        raise RunFailedError(
            f"After step {step}, {len(wrong)} of {len(named) + len(states)} trained weights and "
            f"optimizer states hold NaN or infinite values: {', '.join(wrong[:3])}. They are not "
            "saved.",
            "Resume from the checkpoint before it in a new run with a lower --lr, or use "
            "precision=fp32.",
        )


def _is_finite(value: Any) -> bool:
    """Return whether all values are finite; a finite sum says so in one pass without a copy."""
    import torch

    value = own_shard(value)
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.is_meta:
        return True
    with torch.no_grad():
        total = value.detach().sum(dtype=torch.float32)
        return bool(torch.isfinite(total)) or bool(torch.isfinite(value.detach()).all())


def load_checkpoint(
    path: Path, module: nn.Module, optimizer: Optimizer | None = None
) -> tuple[State, dict[str, Any]]:
    """Put a checkpoint's weights and optimizer state back; return its State and scaler.

    Damaged files are refused; `choose_checkpoint` finds a checkpoint that is whole.
    """
    import torch

    sharded = is_sharded(module)
    with together("reading a checkpoint") if sharded else nullcontext():
        if is_main() or not sharded:
            _refuse_damaged(path)
    saved = read_about(path)
    if is_adapted(module):
        _refuse_other_base(path, module, saved.base)
    with ExitStack() as stack, torch.no_grad():
        reader = _Reader(path, stack)
        if sharded:
            for name, tensor in saved_tensors(module).items():
                reader.copy("model", name, tensor)
        else:  # the module may do more with its state than to copy it
            stored = {name: reader.read(first, t) for name, (first, t) in _named(module).items()}
            module.load_state_dict(stored, strict=not is_adapted(module))
        if optimizer is not None:
            optimizer.load_state_dict(_read_state(reader, optimizer, saved.optimizer))
    return saved.state, saved.scaler


def load_averages(path: Path, optimizer: Optimizer) -> None:
    """Give an optimizer's weights the averages that a checkpoint has of them."""
    import torch

    with ExitStack() as stack, torch.no_grad():
        reader = _Reader(path, stack)
        for index, weight in enumerate(_parameters(optimizer)):
            if f"{index}/{AVERAGE}" in reader.index["optimizer"]:
                reader.copy("optimizer", f"{index}/{AVERAGE}", weight)


@dataclass(frozen=True)
class Index:
    """What index.json holds: the files of each tensor, in order."""

    model: dict[str, list[str]]
    optimizer: dict[str, list[str]]

    def __post_init__(self) -> None:
        for names in (*self.model.values(), *self.optimizer.values()):
            check_names(names)


class _Reader:
    """Reads tensors of a checkpoint: of a sharded one, the rows that this process holds."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path, self._stack = path, stack
        found = read_json(path / INDEX, Index)
        self.index = {"model": found.model, "optimizer": found.optimizer}
        self._opened: dict[str, Any] = {}

    def parts(self, kind: str, name: str) -> list[Any]:
        """Return the slices that make up a tensor, in order; they are read when indexed."""
        from safetensors import safe_open

        files = self.index[kind].get(name)
        if files is None:
            raise self._differing(name, "is not in it")
        for file in files:
            if file not in self._opened:
                opened = safe_open(str(self.path / file), "pt")
                self._opened[file] = self._stack.enter_context(opened)
        return [self._opened[file].get_slice(name) for file in files]

    def read(self, name: str, like: Any) -> Any:
        """Return a whole tensor of the model: mapped, if it lies in one file."""
        import torch

        parts, files = self.parts("model", name), self.index["model"][name]
        if len(parts) == 1:
            whole: Any = self._opened[files[0]].get_tensor(name)
            return whole
        whole = torch.empty_like(like.detach(), device="cpu")
        self.copy("model", name, whole)
        return whole

    def copy(self, kind: str, name: str, target: Any) -> None:
        """Copy the values of a tensor into this process's share of the target."""
        parts, own = self.parts(kind, name), own_shard(target)
        if shape_of(parts) != tuple(target.shape):
            raise self._differing(name, f"has the shape {shape_of(parts)} in it")
        if not target.dim():
            own.copy_(parts[0][...])
            return
        rows, start = own_rows(target), 0
        for part in parts:
            stop = start + part.get_shape()[0]
            first, last = max(rows.start, start), min(rows.stop, stop)
            if first < last:
                held = part[first - start : last - start]
                own[first - rows.start : last - rows.start].copy_(held)
            start = stop

    def _differing(self, name: str, how: str) -> RunFailedError:
        return RunFailedError(
            f"{self.path} does not belong to this model: {name} {how}.",
            "Resume with the model and the settings that the run was begun with.",
        )


def shape_of(parts: list[Any]) -> tuple[int, ...]:
    """Return the shape of a tensor that lies in slices of rows."""
    shapes = [tuple(part.get_shape()) for part in parts]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if shapes[0] else ()


def _read_state(reader: _Reader, optimizer: Optimizer, rest: Mapping[str, Any]) -> dict[str, Any]:
    """Read the state dict of the optimizer: state of a sharded parameter is sharded alike."""
    import torch

    parameters, values = _parameters(optimizer), dict(rest["numbers"])
    for key in reader.index["optimizer"]:
        parameter = parameters[int(key.split("/", 1)[0])].detach()
        parts = reader.parts("optimizer", key)
        dtype = (parts[0][:0] if parts[0].get_shape() else parts[0][...]).dtype
        if shape_of(parts) == tuple(parameter.shape) and parts[0].get_shape():
            values[key] = torch.empty_like(parameter, dtype=dtype)
        else:
            values[key] = torch.empty(shape_of(parts), dtype=dtype)
        reader.copy("optimizer", key, values[key])
    slots: dict[int, dict[str, Any]] = {}
    for key, value in values.items():
        index, slot = key.split("/", 1)
        slots.setdefault(int(index), {})[slot] = value
    groups = [
        {k: tuple(v) if k == "betas" else v for k, v in group.items()}
        for group in rest["param_groups"]
    ]
    return {"state": slots, "param_groups": groups}


def _refuse_damaged(path: Path) -> None:
    damage = checkpoint_damage(path)
    if damage:
        raise RunFailedError(
            f"The checkpoint {path.name} is damaged: {damage[0]}.",
            f"Resume from the checkpoint before it: {to_resume(path.parents[1])}",
        )


def _refuse_other_base(path: Path, module: nn.Module, base: str | None) -> None:
    found = base_fingerprint(module)
    if base != found:
        raise RunFailedError(
            f"{path} belongs to another base model (digest {base}, found {found}).",
            "Put back the model that the run was begun with.",
        )


def prune_checkpoints(folder: Path, keep: int, best_step: int | None) -> None:
    """Delete all but the latest `keep` checkpoints and the best one; one with other files stays."""
    best = checkpoint_path(folder, best_step) if best_step is not None else None
    for path in list_checkpoints(folder)[:-keep]:
        if path != best:
            files.remove_folder(path)
