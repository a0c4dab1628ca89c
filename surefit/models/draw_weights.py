"""Draws the first values of a weight from the seed and its name, alike in any number of processes.

For models that no process holds whole: a weight is drawn whole, one at a time, as the layer and the
transformers model that own it start it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from surefit.errors import RunFailedError

if TYPE_CHECKING:
    from torch import nn


def draw_weight(template: nn.Module, names: tuple[str, ...], seed: int) -> Any:
    """The whole weight, which has these names in the template: the module on the meta device."""
    import torch
    from torch import nn

    empty = template.get_parameter(names[0])
    whole = nn.Parameter(torch.full(empty.shape, math.nan, dtype=empty.dtype), requires_grad=False)
    words = hashlib.blake2b(f"{seed} {names[0]}".encode(), digest_size=8).digest()
    with torch.random.fork_rng(devices=[]), torch.no_grad(), _placed(template, names, whole):
        torch.manual_seed(int.from_bytes(words, "little"))
        _fill(template, names[0], whole)
    if whole.isnan().any():
        raise RunFailedError(
            f"The model does not say how {names[0]} starts: neither its layer nor the model "
            "initialises it.",
            "Save the model with its weights first (save_pretrained), and train from that folder.",
        )
    return whole


@contextmanager
def _placed(template: nn.Module, names: tuple[str, ...], whole: Any) -> Iterator[None]:
    """Put the weight into the template, in which no other weight has values."""
    places = [(template.get_submodule(path), last) for path, last in map(_split, names)]
    before = [owner._parameters[last] for owner, last in places]
    for owner, last in places:
        owner._parameters[last] = whole
    try:
        yield
    finally:
        for (owner, last), parameter in zip(places, before, strict=True):
            owner._parameters[last] = parameter


def _split(name: str) -> tuple[str, str]:
    path, _, last = name.rpartition(".")
    return path, last


def _fill(template: nn.Module, name: str, whole: Any) -> None:
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
        _fill_as_model(template, _split(name)[0])


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
