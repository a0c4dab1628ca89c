"""Which layers of a model LoRA adapts, and which are trained in full, for any architecture."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from surefit.models.model_rules import NO_LORA_TARGET

if TYPE_CHECKING:
    from torch import nn


def find_targets(part: nn.Module, wanted: Sequence[str], kept: Sequence[str]) -> tuple[str, ...]:
    """Names of the layers to adapt: those `wanted` names, or all linear ones but the output.

    A body without linear layers (a convolutional one) is adapted in its convolutions.
    """
    layers = {name: layer for name, layer in part.named_modules() if _adaptable(layer)}
    layers = {name: layer for name, layer in layers.items() if not _within(name, kept)}
    if wanted:
        return _named(part, wanted, layers)
    left_out = {output_embedding(part), *_bypassed(part)}
    free = {
        name: layer
        for name, layer in layers.items()
        if not _is_embedding(layer) and layer not in left_out
    }
    linear = [name for name, layer in free.items() if _is_linear(layer)]
    found = tuple(linear or free)
    if not found:
        raise NO_LORA_TARGET.error(
            f"{type(part).__name__} has no linear layer for LoRA besides its head.",
            fix="Train the whole model: leave lora.r out.",
        )
    return found


def in_short(part: nn.Module, names: Sequence[str]) -> list[str] | str:
    """The same layers as peft is best told: by the ends of their names, else as an expression."""
    every = [name for name, _ in part.named_modules()]
    end = {name: name.rpartition(".")[2] for name in every}
    others = {end[name] for name in every if name not in set(names)}
    short = sorted({name if end[name] in others else end[name] for name in names})
    meant = [name for name in every if any(f".{name}".endswith(f".{one}") for one in short)]
    return short if set(meant) == set(names) else "|".join(map(re.escape, names))


def ends_are_clear(part: nn.Module, names: Sequence[str]) -> bool:
    """Whether no other module's name ends like one of these; peft keeps modules by such ends."""
    every = [name for name, _ in part.named_modules()]
    return {name for name in every if any(name.endswith(one) for one in names)} == set(names)


def find_kept(part: nn.Module, num_outputs: int | None, fresh: Iterable[str]) -> tuple[str, ...]:
    """Names of the modules to train in full: heads, and what starts untrained.

    Batch norms are among them, since their statistics move whether they are trained or not.
    """
    from torch.nn.modules.batchnorm import _BatchNorm

    names = set(_heads(part, num_outputs)) if num_outputs is not None else set()
    names |= {name for name, layer in part.named_modules() if isinstance(layer, _BatchNorm)}
    body = getattr(part, "base_model_prefix", "")
    owners = {name.rpartition(".")[0] for name in fresh}
    names |= {name for name in owners if name not in ("", body)}
    ordered = [name for name, _ in part.named_modules() if name in names]
    return tuple(name for name in ordered if not _within(name, names - {name}))


def output_embedding(part: nn.Module) -> nn.Module | None:
    """The layer that gives the vocabulary's scores, where the model names one."""
    ask: Callable[[], Any] | None = getattr(part, "get_output_embeddings", None)
    found = ask() if ask is not None else None
    return found if hasattr(found, "parameters") else None


def shares_weights(part: nn.Module, layer: nn.Module) -> bool:
    """Whether a layer's weight belongs to another layer, too (tied embeddings)."""
    weight = getattr(layer, "weight", None)
    owners = [m for m in part.modules() if getattr(m, "weight", None) is weight]
    return weight is not None and len(owners) > 1


def _heads(part: nn.Module, num_outputs: int) -> list[str]:
    """What stands beside the body of a transformers model; else the last layer of that size."""
    from torch import nn

    prefix = getattr(part, "base_model_prefix", None)
    if prefix and hasattr(part, prefix) and getattr(part, prefix) is not part:
        return [
            name
            for name, child in part.named_children()
            if name != prefix and any(True for _ in child.parameters())
        ]
    sized = [
        name
        for name, layer in part.named_modules()
        if isinstance(layer, nn.Linear) and layer.out_features == num_outputs
    ]
    return sized[-1:]


def _named(part: nn.Module, wanted: Sequence[str], layers: dict[str, nn.Module]) -> tuple[str, ...]:
    found: set[str] = set()
    for name in wanted:
        matching = [layer for layer in layers if _matches(name, layer)]
        if not matching:
            raise NO_LORA_TARGET.error(f"lora.targets: {_unmatched(part, name, list(layers))}")
        for match in matching:
            if shares_weights(part, layers[match]):
                raise NO_LORA_TARGET.error(
                    f"lora.targets: {match!r} shares its weights with another layer, so an adapter "
                    "on it could not be merged.",
                    fix="Leave it out of lora.targets.",
                )
        found |= set(matching)
    return tuple(name for name in layers if name in found)


def _matches(wanted: str, name: str) -> bool:
    if name == wanted or name.endswith(f".{wanted}"):
        return True
    try:
        return re.fullmatch(wanted, name) is not None
    except re.error:
        return False


def _unmatched(part: nn.Module, wanted: str, layers: Sequence[str]) -> str:
    """What to say of a name that is no layer LoRA can adapt."""
    kinds = {type(m).__name__ for name, m in part.named_modules() if _matches(wanted, name)}
    if kinds:
        return f"{wanted!r} is a {', '.join(sorted(kinds))}, which LoRA does not adapt here."
    ends = list(dict.fromkeys(name.rpartition(".")[2] for name in layers))
    close = difflib.get_close_matches(wanted, [*ends, *layers], n=3, cutoff=0.5)
    shown = close or ends[:12]
    hint = "close to it" if close else "there"
    return f"no layer is named {wanted!r}; {hint}: {', '.join(shown) or 'none'}."


def _within(name: str, parents: Iterable[str]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def _is_linear(layer: nn.Module) -> bool:
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    if _computes_as(layer, nn.Linear, Conv1D):
        return True
    return isinstance(layer, nn.Linear) and _acts_linear(layer)


def _acts_linear(layer: nn.Linear) -> bool:
    """Whether a Linear with a forward of its own still gives weight times input plus bias.

    Falcon's does; a router, which returns scores and places, does not. One of bitsandbytes does
    as well, with weights that are packed.
    """
    import torch

    if type(layer).__module__.startswith("bitsandbytes."):
        return True
    weight = layer.weight.detach()
    inputs = torch.linspace(-1, 1, layer.in_features, dtype=weight.dtype, device=weight.device)
    try:
        with torch.no_grad():
            given = layer(inputs[None])
            expected = torch.nn.functional.linear(inputs[None], weight, layer.bias)
    except Exception:  # whatever it wants, it is not the input of a linear layer
        return False
    return isinstance(given, torch.Tensor) and torch.allclose(given, expected, atol=1e-4)


def _is_embedding(layer: nn.Module) -> bool:
    from torch import nn

    return isinstance(layer, nn.Embedding)


def _adaptable(layer: nn.Module) -> bool:
    from torch import nn
    from torch.nn.parameter import UninitializedParameter

    if isinstance(getattr(layer, "weight", None), UninitializedParameter):
        return False
    if _computes_as(layer, nn.Conv1d, nn.Conv2d, nn.Conv3d):
        return bool(layer.groups == 1)
    return _is_linear(layer) or _computes_as(layer, nn.Embedding)


def _computes_as(layer: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether a layer is of a kind and has its forward, so that an adapter adds to the same."""
    return any(isinstance(layer, k) and type(layer).forward is k.forward for k in kinds)


def _bypassed(part: nn.Module) -> Iterator[nn.Module]:
    """Layers whose weights are read without calling them, where an adapter would do nothing."""
    from torch import nn

    for parent in part.modules():
        if isinstance(parent, nn.MultiheadAttention):
            yield parent.out_proj
        elif re.search("Mamba|Mixer", type(parent).__name__):  # by the kernels of state spaces
            for name in ("out_proj", "dt_proj", "conv1d"):
                if hasattr(parent, name):
                    yield getattr(parent, name)
