"""Saves and loads LoRA adapters in peft's folder format, with a digest of their base model.

`adapter_config.json` and `adapter_model.safetensors` are peft's. `base.json` is ours and has the
digest of the frozen weights. A base model that peft cannot find by name is saved in `base/`.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from surefit.core import files
from surefit.core.foreign import library_reads, read_json
from surefit.core.patterns import matching
from surefit.errors import UsageError
from surefit.models.lora import (
    ADAPTER,
    Beneath,
    adapted_part,
    adapter_config,
    base_fingerprint,
    beneath_of,
    fully_trained_modules,
    insert_adapters,
    is_adapted,
    scale_of,
)
from surefit.models.lora_targets import shorten_names
from surefit.models.model_source import as_given
from surefit.models.quantize import FOUR_BITS, import_peft, is_quantized

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
BASE = "base"
BASE_FACTS = "base.json"
PREFIX = "base_model.model."
FORMAT_VERSION = 1
COPY_AGAIN = "Copy the folder of the adapters again, or correct the file."
MAX_RANK = 1 << 16


@dataclass(frozen=True)
class BaseFacts:
    """What a folder of adapters says of their base model."""

    format_version: int = FORMAT_VERSION
    fingerprint: str | None = None
    kept: list[str] = field(default_factory=list)
    """Modules that are trained in full."""
    path: str | None = None
    """The folder of the base model, from that of the adapters."""
    quantize: str | None = None


def has_adapters(folder: Path) -> bool:
    """Return whether the folder holds adapters instead of a whole model."""
    return (folder / CONFIG).is_file()


def has_named_base(folder: Path) -> bool:
    """Return whether the folder holds adapters for a base model that is found by its name."""
    return has_adapters(folder) and not (folder / BASE).is_dir()


def save_adapters(module: nn.Module, folder: Path, base: str) -> None:
    """Write the adapters and all other trained weights as peft does, for the named base model."""
    from safetensors.torch import save_file

    part = adapted_part(module)
    state, beneath = adapter_state(part), beneath_of(part)
    config = copy.deepcopy(adapter_config(part))
    if beneath is not None:
        _put_beneath(part, state, config, beneath)
    tensors = {f"{PREFIX}{k}": v.detach().cpu().contiguous() for k, v in state.items()}
    save_file(tensors, str(folder / WEIGHTS), metadata={"format": "pt"})
    config.inference_mode = True
    config.base_model_name_or_path = base
    if not isinstance(config.target_modules, str):
        config.target_modules = sorted(config.target_modules)
    if config.task_type is None and hasattr(part, "save_pretrained"):
        library = type(part).__module__.split(".")[0]
        config.auto_mapping = {"base_model_class": type(part).__name__, "parent_library": library}
    config.save_pretrained(str(folder))
    facts = BaseFacts(
        fingerprint=base_fingerprint(module) if beneath is None else beneath.fingerprint,
        kept=[] if config.modules_to_save else list(fully_trained_modules(part)),
        path=os.path.relpath(base, folder) if Path(base).is_dir() else None,
        quantize=FOUR_BITS if is_quantized(part) else None,
    )
    files.write_json(folder / BASE_FACTS, asdict(facts))


def adapter_state(part: nn.Module) -> dict[str, Any]:
    """Return the weights of the adapters, and the other trained ones, by peft's names in files."""
    from peft import get_peft_model_state_dict

    return dict(get_peft_model_state_dict(part, adapter_name=ADAPTER, save_embedding_layers=False))


def _put_beneath(part: nn.Module, state: dict[str, Any], config: Any, beneath: Beneath) -> None:
    """Add the adapters below the new ones to their state and config: side by side, they are one.

    Both have their scale in B, so that the scale of their sum is 1 for each layer.
    """
    for name, layer in matrices(state, "B").items():
        state[name] = state[name] * scale_of(part, layer)
    for side, letter in enumerate("AB"):  # A is (r, in), B is (out, r)
        for name in matrices(beneath.tensors, letter):
            own, below = state.get(name), beneath.tensors[name]
            both = below if own is None else torch.cat([own, below.to(own.device)], side)
            state[name] = both
    ranks = {layer: len(state[name]) for name, layer in matrices(state, "A").items()}
    config.r = config.lora_alpha = max(ranks.values())
    odd = {layer: rank for layer, rank in ranks.items() if rank != config.r}
    config.rank_pattern, config.alpha_pattern, config.use_rslora = odd, dict(odd), False
    config.target_modules = shorten_names(part, sorted(ranks))


def matrices(state: Mapping[str, Any], letter: str) -> dict[str, str]:
    """Return the names of the matrices A or B in a state, with the layers they belong to."""
    found = {name: re.fullmatch(rf"(.+)\.lora_(embedding_)?{letter}\b.*", name) for name in state}
    return {name: match[1] for name, match in found.items() if match is not None}


def point_to_base(folder: Path, final: Path) -> None:
    """Set the path of the base model in the adapter config, for a folder that moves to `final`."""
    if not (folder / BASE).is_dir():
        return
    config = read_json(folder / CONFIG, dict[str, Any])
    config["base_model_name_or_path"] = as_given(final / BASE)
    files.write_json(folder / CONFIG, config)


def find_base(folder: Path) -> str:
    """Return the folder or hub id of the base model of a folder's adapters."""
    if (folder / BASE).is_dir():
        return str(folder / BASE)
    name = read_json(folder / CONFIG, dict[str, Any]).get("base_model_name_or_path")
    beside = _read_facts(folder).path
    if beside is not None and os.path.isdir(folder / beside):  # from any working folder
        return os.path.normpath(folder / beside)
    is_path = isinstance(name, str) and name.startswith((".", "/"))
    if not isinstance(name, str) or not name or (is_path and not os.path.isdir(name)):
        raise UsageError(
            f"The adapters in {folder} belong to the base model {name}, which was not found.",
            f"Restore it, or set base_model_name_or_path in {folder / CONFIG} to its new path.",
        )
    return str(name)


def base_quantization(folder: Path) -> str | None:
    """How the base model was quantized when the adapters were trained; None if it was not."""
    found = _read_facts(folder).quantize
    if found not in (None, FOUR_BITS):
        raise UsageError(
            f"{folder / BASE_FACTS} has the quantization {found!r}; expected {FOUR_BITS!r}.",
            "Use the version of surefit that wrote it.",
        )
    return found


def load_adapters(module: nn.Module, folder: Path, *, resized: bool = False) -> nn.Module:
    """Insert the folder's adapters into their base model, in place; refuses another base model.

    One that was `resized` for new tokens has another digest.
    """
    import_peft()
    from peft import LoraConfig, set_peft_model_state_dict
    from safetensors.torch import load_file

    part = adapted_part(module)
    facts = _read_facts(folder)
    if not is_adapted(module):
        _check_config(part, folder / CONFIG)
        with library_reads(f"{folder / CONFIG} is not a config of LoRA adapters", COPY_AGAIN):
            config = LoraConfig.from_pretrained(str(folder))
        if config.megatron_config:  # peft would import the module that megatron_core names
            raise UsageError(
                f"{folder / CONFIG} names the module {config.megatron_core} to import "
                "(megatron_config), which a run's folder cannot ask for.",
                "Remove megatron_config from the file.",
            )
        with library_reads(f"{folder / CONFIG} does not fit the base model", COPY_AGAIN):
            insert_adapters(part, config, facts.kept)
    with library_reads(f"{folder / WEIGHTS} cannot be read", COPY_AGAIN):
        saved = load_file(str(folder / WEIGHTS))
    state = {name.removeprefix(PREFIX): tensor for name, tensor in saved.items()}
    _check_base(module, folder, None if resized else facts.fingerprint)
    try:
        result: Any = set_peft_model_state_dict(part, state, adapter_name=ADAPTER)
    except (RuntimeError, KeyError) as error:
        raise UsageError(
            f"The adapters in {folder} do not match their base model: {str(error).splitlines()[0]}",
            "Use the base model they were trained on.",
        ) from None
    if result.unexpected_keys:
        raise UsageError(
            f"The adapters in {folder} do not match their base model, which has no "
            f"{result.unexpected_keys[0]}.",
            "Use the base model they were trained on.",
        )
    return module


@dataclass(frozen=True)
class PeftConfig:
    """What peft's config of adapters says of the layers; peft itself checks none of it."""

    peft_type: str = "LORA"
    r: int = 8
    target_modules: str | list[str] | None = None
    exclude_modules: str | list[str] | None = None
    modules_to_save: list[str] | None = None
    layers_pattern: str | list[str] | None = None
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None

    def patterns(self) -> Iterator[tuple[str, str]]:
        """Yield key and regular expression, as peft matches each with the names of all layers."""
        for key in ("target_modules", "exclude_modules"):
            if isinstance(pattern := getattr(self, key), str):
                yield key, pattern
        for key in ("rank_pattern", "alpha_pattern"):
            yield from ((key, rf"(.*\.)?({each})") for each in getattr(self, key) or ())
        for each in self.modules_to_save or ():
            yield "modules_to_save", rf"(.*\.)?{each}(\..*)?"
        layers = self.layers_pattern or ()
        for each in (layers,) if isinstance(layers, str) else layers:
            yield "layers_pattern", rf"(?:.*?\.)?{each}\.\d+\..*"


def _check_config(part: nn.Module, path: Path) -> None:
    """Refuse a config that peft would fail on, or match with the names of layers without end."""
    config = read_json(path, PeftConfig, COPY_AGAIN)
    if config.peft_type != "LORA":
        raise UsageError(
            f"{path} is of {config.peft_type} adapters; surefit reads those of LoRA.",
            "Merge them with peft (merge_and_unload), and pass the merged model.",
        )
    ranks = (config.r, *(config.rank_pattern or {}).values())
    odd = next((rank for rank in ranks if not 0 < rank <= MAX_RANK), None)
    if odd is not None:
        raise UsageError(f"{path} has a rank of {odd:,}; expected 1 to {MAX_RANK:,}.", COPY_AGAIN)
    names = [name for name, _ in part.named_modules()]
    for key, pattern in config.patterns():
        matching(pattern, names, f"{path}, {key}")


def _read_facts(folder: Path) -> BaseFacts:
    path = folder / BASE_FACTS
    if not path.is_file():  # adapters that peft wrote
        return BaseFacts()
    facts = read_json(path, BaseFacts)
    if facts.format_version != FORMAT_VERSION:
        raise UsageError(
            f"{path} was written by another version of surefit.", "Use the version that wrote it."
        )
    return facts


def _check_base(module: nn.Module, folder: Path, expected: str | None) -> None:
    found = base_fingerprint(module)
    if expected is not None and found is not None and expected != found:
        raise UsageError(
            f"The base model of the adapters in {folder} has changed since they were trained "
            f"(digest {found}, expected {expected}).",
            "Restore the base model; adapters work only on the one they were trained on.",
        )
