"""Reads the weights of a transformers folder into a model that was divided without values.

The model is built on the meta device; each process reads the rows that it holds. transformers
renames the weights of a file as its own loader does. A model whose weights it also converts (joins
experts, splits matrices) is loaded whole instead.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surefit.errors import RunFailedError
from surefit.models.sharded_tensors import is_divided, own_rows, unique_tensors

if TYPE_CHECKING:
    from torch import nn

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
COPIED, ORIGINAL = ".modules_to_save.default.", ".original_module."
"""peft trains a copy of a module: the weights of the copy start as those of the original."""


@dataclass(frozen=True)
class Place:
    """A weight in a file."""

    file: Path
    key: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LateWeights:
    """Where the values of a model without values are, by its parameters and buffers."""

    places: tuple[tuple[Any, Place], ...]

    def by_name(self, module: nn.Module) -> dict[str, Place]:
        """The places by the names that the weights have now; to be called before the division."""
        known = {id(tensor): place for tensor, place in self.places}
        named = {}
        for first, (tensor, names) in unique_tensors(module).items():
            place = known.get(id(tensor))
            if place is not None and place.shape == tuple(tensor.shape):
                named[first] = place
                named |= dict.fromkeys(names, place)
        for name in list(named):
            if ORIGINAL in name:
                named[name.replace(ORIGINAL, COPIED)] = named[name]
        return named


_LATE: WeakKeyDictionary[Any, LateWeights] = WeakKeyDictionary()


def late_weights(module: nn.Module) -> LateWeights | None:
    """Where the weights of a module without values are, if `build_late` has built it."""
    return _LATE.get(module)


def build_late(auto: Any, config: Any, folder: Path, trust_remote_code: bool) -> Any:
    """A model without values, whose weights are read when it is divided; None if they cannot be."""
    model = build_empty(auto, config, trust_remote_code)
    weights = find_late_weights(model, folder)
    if weights is None:
        return None
    _LATE[model] = weights
    return model


def whole_bytes(folder: Path) -> int:
    """Bytes of a folder's weights in float32, as one process would load them; 0 if unknown."""
    return sum(4 * math.prod(place.shape) for place in list_weights(folder).values())


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a transformers folder; none if it has other weights."""
    index = folder / INDEX
    if index.is_file():
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        files = [folder / name for name in sorted(set(names))]
    else:
        files = [folder / WEIGHTS]
    return files if all(file.is_file() for file in files) else []


def list_weights(folder: Path) -> dict[str, Place]:
    """The weights in a folder, by their keys; only headers are read."""
    from safetensors import safe_open

    found = {}
    for file in weight_files(folder):
        with safe_open(str(file), "pt") as opened:
            for key in opened.keys():  # noqa: SIM118 - it is no dict
                found[key] = Place(file, key, tuple(opened.get_slice(key).get_shape()))
    return found


def find_late_weights(model: Any, folder: Path) -> LateWeights | None:
    """Where the weights of a transformers model are; None if they would have to be converted."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        rename_source_key,
    )

    state = model.state_dict(keep_vars=True)
    mapping = get_model_conversion_mapping(model)
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    if len(renamings) + len(converters) != len(mapping):
        return None
    prefix, places = model.base_model_prefix, []
    for key, place in sorted(list_weights(folder).items()):
        name, converted = rename_source_key(key, renamings, converters, prefix, state)
        if name not in state and key in state:
            name, converted = rename_source_key(key, [], [], prefix, state)
        if converted is not None:
            return None
        if name in state:
            places.append((state[name], place))
    return LateWeights(tuple(places))


def build_empty(auto: Any, config: Any, trust_remote_code: bool) -> Any:
    """The model with parameters on the meta device, and buffers with their values."""
    import torch
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        model = auto.from_config(config, dtype=torch.float32, trust_remote_code=trust_remote_code)
    model.tie_weights()  # accelerate has made a parameter of each place
    return model


def fill_divided(module: nn.Module, places: dict[str, Place], device: Any, seed: int) -> list[str]:
    """Give a divided module on the meta device its values; the weights that no file has.

    Those are initialised from the seed and their names, alike in any number of processes.
    """
    import torch
    from safetensors import safe_open

    fresh: list[str] = []
    wanted: dict[Path, list[tuple[Any, Place]]] = {}
    with torch.no_grad():
        for first, (tensor, names) in unique_tensors(module).items():
            target = _materialize(module, names, tensor, device) if tensor.is_meta else tensor
            if first in places:
                wanted.setdefault(places[first].file, []).append((target, places[first]))
            elif tensor.is_meta:
                _initialize(module, first, target, seed)
                fresh.append(first)
        for file, targets in wanted.items():
            with safe_open(str(file), "pt") as opened:
                for target, place in targets:
                    _read(opened.get_slice(place.key), target)
    return fresh


def _materialize(module: nn.Module, names: tuple[str, ...], tensor: Any, device: Any) -> Any:
    """A parameter with memory for the own share, in all places of the one without."""
    import torch
    from torch import nn

    if is_divided(tensor):
        from torch.distributed.tensor import DTensor

        share = torch.empty_like(tensor.to_local(), device=device)
        whole: Any = DTensor.from_local(
            share,
            tensor.device_mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )
    else:
        whole = torch.empty_like(tensor, device=device)
    is_parameter = isinstance(tensor, nn.Parameter)
    made = nn.Parameter(whole, tensor.requires_grad) if is_parameter else whole
    for owner, last in _owners(module, names):
        (owner._parameters if is_parameter else owner._buffers)[last] = made
    return made


def _owners(module: nn.Module, names: tuple[str, ...]) -> Iterator[tuple[nn.Module, str]]:
    for name in names:
        place, _, last = name.rpartition(".")
        yield module.get_submodule(place), last


def _read(source: Any, target: Any) -> None:
    """Copy the rows that this process holds."""
    if not target.dim():
        target.copy_(source[...])
        return
    rows = own_rows(target)
    if len(rows):
        share = target.to_local() if is_divided(target) else target
        share.copy_(source[rows.start : rows.stop])


def _initialize(module: nn.Module, name: str, target: Any, seed: int) -> None:
    """Initialise a weight as its layer does, whole, and keep the own share."""
    import torch

    whole = torch.empty(target.shape, dtype=target.dtype)
    words = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(words, "little"))
        _fill_new(module, name, whole)
    share = target.to_local() if is_divided(target) else target
    rows = own_rows(target) if target.dim() else range(0)
    share.copy_(whole[rows.start : rows.stop] if target.dim() else whole)


def _fill_new(module: nn.Module, name: str, whole: Any) -> None:
    """The values of a new weight: an adapter's, or those of the model's own initialisation."""
    from torch import nn

    if ".lora_A." in name:
        nn.init.kaiming_uniform_(whole, a=math.sqrt(5))
    elif ".lora_B." in name:
        whole.zero_()
    elif ".lora_" in name:
        raise RunFailedError(
            f"{name} starts from the values of other weights, which no process holds whole.",
            "Use plain LoRA (lora.dora=false), or processes with more memory.",
        )
    else:
        _init_like_model(module, name, whole)


def _init_like_model(module: nn.Module, name: str, whole: Any) -> None:
    """Let the transformers model that owns the layer initialise a copy of it."""
    import torch
    from torch import nn

    place, _, last = name.rpartition(".")
    owner = module.get_submodule(place)
    known = {id(p): nn.Parameter(torch.empty(p.shape)) for p in owner.parameters(recurse=False)}
    alone = copy.copy(owner)
    alone._parameters = {
        key: None if p is None else known[id(p)] for key, p in owner._parameters.items()
    }
    alone._parameters[last] = drawn = nn.Parameter(whole)
    inside = [(n, m) for n, m in module.named_modules() if hasattr(m, "_init_weights")]
    models = [m for n, m in inside if not n or place == n or place.startswith(f"{n}.")]
    assert models, f"{name} is in no transformers model"
    models[-1]._init_weights(alone)
    whole.copy_(drawn.detach())
