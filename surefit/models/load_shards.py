"""Gives a transformers model that was sharded without values its weights: read, or drawn anew.

The model is built on the meta device; each process reads the rows of its shards. transformers
renames the weights of a file as its own loader does. A model whose weights it also converts (joins
experts, splits matrices) is loaded whole instead. Weights that no file has are drawn one by one.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from surefit.core.foreign import check_names, read_json
from surefit.errors import RunFailedError
from surefit.models.model_source import Built
from surefit.models.sharding import assign, is_dtensor, own_rows, own_shard, unique_tensors
from surefit.models.transformers_models import fit_embeddings, new_model, report_new


def draw_weight(template: nn.Module, names: tuple[str, ...], seed: int) -> Any:
    """Return whole weight, which has these names in the template: the module on the meta device."""
    empty = template.get_parameter(names[0])
    whole = nn.Parameter(torch.full(empty.shape, math.nan, dtype=empty.dtype), requires_grad=False)
    words = hashlib.blake2b(f"{seed} {names[0]}".encode(), digest_size=8).digest()
    assign(template, names, whole)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(int.from_bytes(words, "little"))
            _fill(template, names[0], whole)
    finally:
        assign(template, names, empty)  # no weight of the template keeps values
    if whole.isnan().any():
        raise RunFailedError(
            f"The model does not say how {names[0]} starts: neither its layer nor the model "
            "initialises it.",
            "Save the model with its weights first (save_pretrained), and train from that folder.",
        )
    return whole


def _fill(template: nn.Module, name: str, whole: Any) -> None:
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
        _fill_as_model(template, name.rpartition(".")[0])


def _fill_as_model(template: nn.Module, path: str) -> None:
    """Initialise the layer, then all that contains it: models set weights of inner layers too.

    What has no values stays without them.
    """
    from transformers import PreTrainedModel

    layer: Any = template.get_submodule(path)
    if hasattr(layer, "reset_parameters"):
        layer.reset_parameters()
    parts, model = path.split(".") if path else [], None
    chain: list[tuple[Any, nn.Module]] = []
    for depth in range(len(parts) + 1):
        module = template.get_submodule(".".join(parts[:depth]))
        model = module if isinstance(module, PreTrainedModel) else model
        if model is not None:
            chain.append((model, module))
    for model, module in reversed(chain):
        model._init_weights(module)


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
COPIED, ORIGINAL = ".modules_to_save.default.", ".original_module."
"""peft trains a copy of a module: the weights of the copy start as those of the original."""
PLACE = "_surefit_place"
"""The attribute of a weight without values that has its Place."""


@dataclass(frozen=True)
class Place:
    """A weight in a file."""

    file: Path
    key: str
    shape: tuple[int, ...]


def late_weights(module: nn.Module) -> dict[str, Place] | None:
    """Return where the values of a model without values are, by the names of its weights now.

    None if the module has its values. To be called before the module is sharded.
    """
    if not any(parameter.is_meta for parameter in module.parameters()):
        return None
    named: dict[str, Place] = {}
    for tensor, names in unique_tensors(module).values():
        place = getattr(tensor, PLACE, None)
        if place is not None:
            named |= dict.fromkeys(names, place)
    copies = {n.replace(ORIGINAL, COPIED): place for n, place in named.items() if ORIGINAL in n}
    return named | copies


def build_late(
    auto: Any, config: Any, folder: Path | None, tokenizer: Any, trust_remote_code: bool
) -> Built | None:
    """Return a model without values, which it gets when it is sharded; without a folder, drawn
    ones.

    None if it has to be loaded or drawn whole.
    """
    model = build_empty(auto, config, trust_remote_code)
    places = {} if folder is None else find_places(model, folder)
    if places is None or (folder is None and any(map(is_parametrized, model.modules()))):
        return None  # a weight that is computed from others starts with them
    built = fit_embeddings(Built(model), tokenizer)
    state = model.state_dict(keep_vars=True)
    for name, place in places.items():
        setattr(state[name], PLACE, place)
    if folder is None:
        return built
    weights = unique_tensors(model).items()
    new = [name for name, (weight, _) in weights if weight.is_meta and not hasattr(weight, PLACE)]
    return replace(built, findings=(*built.findings, *report_new(new)), newly_initialized=(*new,))


def whole_bytes(folder: Path) -> int:
    """Bytes of a folder's weights in float32, as one process would load them; 0 if unknown."""
    return sum(4 * math.prod(place.shape) for place in list_weights(folder).values())


@dataclass(frozen=True)
class WeightIndex:
    """The file of each weight, as transformers saves it."""

    weight_map: dict[str, str]

    def __post_init__(self) -> None:
        check_names(self.weight_map.values())


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a transformers folder; none if it has other weights."""
    index = folder / INDEX
    if index.is_file():
        weights = read_json(index, WeightIndex, "Download the model again.").weight_map
        files = [folder / name for name in sorted({*weights.values()})]
    else:
        files = [folder / WEIGHTS]
    return files if all(file.is_file() for file in files) else []


def list_weights(folder: Path) -> dict[str, Place]:
    """Return the weights in a folder, by their keys; only headers are read."""
    from safetensors import safe_open

    found = {}
    for file in weight_files(folder):
        with safe_open(str(file), "pt") as opened:
            for key in opened.keys():  # noqa: SIM118 - it is no dict
                found[key] = Place(file, key, tuple(opened.get_slice(key).get_shape()))
    return found


def find_places(model: Any, folder: Path) -> dict[str, Place] | None:
    """Return where the weights of a transformers model are; None if they have to be loaded whole.

    A weight that has another shape in the file, such as the head for another task, has no place.
    """
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
    prefix, places = model.base_model_prefix, {}
    stored = list_weights(folder)
    if not stored:
        return None
    for key, place in sorted(stored.items()):
        name, converted = rename_source_key(key, renamings, converters, prefix, state)
        if name not in state and key in state:
            name, converted = rename_source_key(key, [], [], prefix, state)
        if converted is not None:
            return None
        if name in state and place.shape == tuple(state[name].shape):
            places[name] = place
    return places


def build_empty(auto: Any, config: Any, trust_remote_code: bool) -> Any:
    """Return the model with parameters on the meta device, and buffers with their values."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        model = new_model(auto, config, trust_remote_code)
    model.tie_weights()  # accelerate has made a parameter of each place
    return model


def fill_shards(
    module: nn.Module, places: dict[str, Place], device: Any, seed: int, template: nn.Module
) -> list[str]:
    """Give a sharded module on the meta device its values; returns the weights that no file has.

    Those are drawn. `template` is the module before it was sharded, without values. Of embeddings
    that were enlarged for the tokenizer, the added rows are drawn.
    """
    from safetensors import safe_open

    fresh: list[str] = []
    wanted: dict[Path, list[tuple[Any, Place]]] = {}
    with torch.no_grad():
        for first, (tensor, names) in unique_tensors(module).items():
            target = _materialize(module, names, tensor, device) if tensor.is_meta else tensor
            place = places.get(first)
            if place is not None:
                wanted.setdefault(place.file, []).append((target, place))
            if tensor.is_meta and (place is None or place.shape != tuple(tensor.shape)):
                _copy_shard(draw_weight(template, names, seed), target)
                fresh += [first] if place is None else []
        for file, targets in wanted.items():
            with safe_open(str(file), "pt") as opened:
                for target, place in targets:
                    _copy_shard(opened.get_slice(place.key), target, *place.shape[:1])
    return fresh


def _materialize(module: nn.Module, names: tuple[str, ...], tensor: Any, device: Any) -> Any:
    """Return a tensor with memory for the own shard, in all places of the one without."""
    if is_dtensor(tensor):
        from torch.distributed.tensor import DTensor

        shard = torch.empty_like(tensor.to_local(), device=device)
        whole: Any = DTensor.from_local(
            shard,
            tensor.device_mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )
    else:
        whole = torch.empty_like(tensor, device=device)
    return assign(module, names, whole)


def _copy_shard(source: Any, target: Any, num_rows: int | None = None) -> None:
    """Copy the rows that this process holds, of those that the source has."""
    shard = own_shard(target)
    if not target.dim():
        shard.copy_(source[...])
        return
    rows = own_rows(target)
    stop = rows.stop if num_rows is None else min(rows.stop, num_rows)
    if rows.start < stop:
        shard[: stop - rows.start].copy_(source[rows.start : stop])
