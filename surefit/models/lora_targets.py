"""Selects the layers of any model that LoRA adapts, and the modules that are trained in full."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter

from surefit.core.patterns import matching
from surefit.findings import rule
from surefit.speed.choose_head import find_output_embedding

NO_LORA_TARGET = rule(
    "SF321",
    "error",
    "no layer for LoRA",
    why="LoRA has no layer to adapt, so nothing would be trained.",
    fix="Set lora.targets to layers of the model, or leave it out.",
)


def find_targets(
    part: nn.Module, wanted: Sequence[str], fully_trained: Sequence[str]
) -> tuple[str, ...]:
    """Return names of the layers to adapt: those in `wanted`, else all linear layers except the
    head.

    In a body without linear layers, such as a ResNet, the convolutions are adapted.
    """
    layers = {name: layer for name, layer in part.named_modules() if _adaptable(layer)}
    layers = {name: layer for name, layer in layers.items() if not _within(name, fully_trained)}
    if wanted:
        return _named(part, wanted, layers)
    skipped = {find_output_embedding(part), *_bypassed(part)}
    free = {
        name: layer
        for name, layer in layers.items()
        if not isinstance(layer, nn.Embedding) and layer not in skipped
    }
    linear = [name for name, layer in free.items() if _is_linear(layer)]
    found = tuple(linear or free)
    if not found:
        raise NO_LORA_TARGET.error(
            f"{type(part).__name__} has no linear layer besides its head.",
            fix="Train the whole model: leave out lora.r.",
        )
    return found


def shorten_names(part: nn.Module, names: Sequence[str]) -> list[str] | str:
    """Return layer names as `target_modules`: shared last parts, else one regular expression."""
    every = [name for name, _ in part.named_modules()]
    end = {name: name.rpartition(".")[2] for name in every}
    others = {end[name] for name in every if name not in set(names)}
    short = sorted({name if end[name] in others else end[name] for name in names})
    meant = [name for name in every if any(f".{name}".endswith(f".{one}") for one in short)]
    return short if set(meant) == set(names) else "|".join(map(re.escape, names))


def suffixes_are_unique(part: nn.Module, names: Sequence[str]) -> bool:
    """Whether no other module name ends with one of these, by which peft finds modules to save."""
    every = [name for name, _ in part.named_modules()]
    return {name for name in every if any(name.endswith(one) for one in names)} == set(names)


def find_fully_trained(
    part: nn.Module,
    num_outputs: int | None,
    newly_initialized: Iterable[str],
    wanted: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return names of the modules to train in full: heads, newly initialized modules, batch norms
    and those that `lora.modules_to_save` names.

    The statistics of batch norms change in training even if their weights are frozen.
    """
    names = set(_heads(part, num_outputs)) if num_outputs is not None else set()
    names |= {name for name, layer in part.named_modules() if isinstance(layer, _BatchNorm)}
    body = getattr(part, "base_model_prefix", "")
    owners = {name.rpartition(".")[0] for name in newly_initialized}
    names |= {name for name in owners if name not in ("", body)}
    for pattern in wanted:
        names |= _find_saved(part, pattern)
    ordered = [name for name, _ in part.named_modules() if name in names]
    return tuple(name for name in ordered if not _within(name, names - {name}))


def _find_saved(part: nn.Module, pattern: str) -> frozenset[str]:
    """Return the modules that a name of `lora.modules_to_save` means."""
    key = "lora.modules_to_save"
    modules = {n: m for n, m in part.named_modules() if n and any(True for _ in m.parameters())}
    meant = _meant(pattern, modules, key)
    if not meant:
        ends = dict.fromkeys(name.rpartition(".")[2] for name in modules)
        close = difflib.get_close_matches(pattern, [end for end in ends if not end.isdigit()])
        raise NO_LORA_TARGET.error(
            f"{key}: no module with weights is named {pattern!r}"
            + (f"; close matches: {', '.join(close)}." if close else "."),
            fix="Name modules of the model, or leave it out.",
        )
    tied = next((name for name in sorted(meant) if shares_weights(part, modules[name])), None)
    if tied is not None:
        raise NO_LORA_TARGET.error(
            f"{key}: {tied!r} shares its weights with another layer, which would keep its own.",
            fix="Remove it; to train the embeddings of some tokens, name them in add_tokens.",
        )
    return meant


def shares_weights(part: nn.Module, layer: nn.Module) -> bool:
    """Return whether another layer has the same weight (tied embeddings)."""
    weight = getattr(layer, "weight", None)
    owners = [m for m in part.modules() if getattr(m, "weight", None) is weight]
    return weight is not None and len(owners) > 1


def _heads(part: nn.Module, num_outputs: int) -> list[str]:
    """Return children beside the body of a transformers model, else the last layer of that size."""
    prefix = getattr(part, "base_model_prefix", None)
    if prefix and hasattr(part, prefix) and getattr(part, prefix) is not part:
        return [
            name
            for name, child in part.named_children()
            if name != prefix and any(True for _ in child.parameters())
        ]
    sizes = {name: m.out_features for name, m in part.named_modules() if isinstance(m, nn.Linear)}
    wanted = (2, 1) if num_outputs == 2 else (num_outputs,)  # one score will do for two classes
    found = ([n for n, size in sizes.items() if size == each] for each in wanted)
    return next((names[-1:] for names in found if names), [])


def _named(part: nn.Module, wanted: Sequence[str], layers: dict[str, nn.Module]) -> tuple[str, ...]:
    found: set[str] = set()
    for name in wanted:
        meant = _meant(name, layers, "lora.targets")
        if not meant:
            raise NO_LORA_TARGET.error(f"lora.targets: {_unmatched(part, name, list(layers))}")
        for match in sorted(meant):
            if shares_weights(part, layers[match]):
                raise NO_LORA_TARGET.error(
                    f"lora.targets: {match!r} shares its weights with another layer, so an adapter "
                    "on it cannot be merged.",
                    fix="Remove it from lora.targets.",
                )
        found |= meant
    return tuple(name for name in layers if name in found)


def _meant(wanted: str, names: Iterable[str], key: str) -> frozenset[str]:
    """Return the layers that a name of `key` means: by its end, or as a regex."""
    every = [*names]
    plain = (name for name in every if f".{name}".endswith(f".{wanted}"))
    return frozenset(plain) | matching(wanted, every, key)


def _unmatched(part: nn.Module, wanted: str, layers: Sequence[str]) -> str:
    """Return the message for a name that matches no layer LoRA can adapt."""
    every = dict(part.named_modules())
    kinds = {type(every[name]).__name__ for name in _meant(wanted, every, "lora.targets")}
    if kinds:
        return f"{wanted!r} is a {', '.join(sorted(kinds))}, which LoRA cannot adapt here."
    ends = list(dict.fromkeys(name.rpartition(".")[2] for name in layers))
    close = difflib.get_close_matches(wanted, [*ends, *layers], n=3, cutoff=0.5)
    shown = close or ends[:12]
    hint = "close matches" if close else "layers"
    return f"no layer is named {wanted!r}; {hint}: {', '.join(shown) or 'none'}."


def _within(name: str, parents: Iterable[str]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def _is_linear(layer: nn.Module) -> bool:
    from transformers.pytorch_utils import Conv1D

    if _computes_as(layer, nn.Linear, Conv1D):
        return True
    return isinstance(layer, nn.Linear) and _acts_linear(layer)


def _acts_linear(layer: nn.Linear) -> bool:
    """Return whether a subclass of Linear computes weight times input plus bias.

    Falcon's does; a router, which returns scores and indices, does not. Those of bitsandbytes do,
    on quantized weights.
    """
    if type(layer).__module__.startswith("bitsandbytes."):
        return True
    weight = layer.weight.detach()
    inputs = torch.linspace(-1, 1, layer.in_features, dtype=weight.dtype, device=weight.device)
    try:
        with torch.no_grad():
            given = layer(inputs[None])
            expected = torch.nn.functional.linear(inputs[None], weight, layer.bias)
    except Exception:  # it does not accept the input of a linear layer
        return False
    return isinstance(given, torch.Tensor) and torch.allclose(given, expected, atol=1e-4)


def find_matrices(part: nn.Module) -> list[nn.Module]:
    """Layers that multiply by their own weight in `forward`, and that nothing else reads."""
    from transformers.pytorch_utils import Conv1D

    owners: dict[int, int] = {}
    for layer in part.modules():
        for parameter in layer.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    bypassed = {id(layer) for layer in _bypassed(part)}
    return [
        layer
        for layer in part.modules()
        if _computes_as(layer, nn.Linear, Conv1D) and id(layer) not in bypassed
        if all(owners[id(parameter)] == 1 for parameter in layer.parameters(recurse=False))
    ]


def _adaptable(layer: nn.Module) -> bool:
    if isinstance(getattr(layer, "weight", None), UninitializedParameter):
        return False
    if _computes_as(layer, nn.Conv1d, nn.Conv2d, nn.Conv3d):
        return bool(layer.groups == 1)
    return _is_linear(layer) or _computes_as(layer, nn.Embedding)


def _computes_as(layer: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Return whether a layer has one of these types and its forward, which adapters rely on."""
    return any(isinstance(layer, k) and type(layer).forward is k.forward for k in kinds)


def _bypassed(part: nn.Module) -> Iterator[nn.Module]:
    """Layers whose weights are read without calling them, so that an adapter has no effect."""
    for parent in part.modules():
        if isinstance(parent, nn.MultiheadAttention):
            yield parent.out_proj
        elif re.search("Mamba|Mixer", type(parent).__name__):  # state-space kernels read these
            for name in ("out_proj", "dt_proj", "conv1d"):
                if hasattr(parent, name):
                    yield getattr(parent, name)
