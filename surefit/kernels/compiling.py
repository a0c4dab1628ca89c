"""torch.compile for the layers a model repeats: one of them is compiled, all of them use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

PAYS_AFTER_STEPS = 1000
"""Steps on CUDA from which compiling, which takes about a minute, is taken to pay for itself."""


def repeated_layers(module: nn.Module) -> list[nn.Module]:
    """The longest list of layers of one kind, such as the blocks of a transformer."""
    from torch import nn

    lists = [
        list(part)
        for part in module.modules()
        if isinstance(part, nn.ModuleList) and len(part) > 1 and len({*map(type, part)}) == 1
    ]
    return max(lists, key=len, default=[])


def choose_compile(wanted: str, num_layers: int, num_steps: int, on_cuda: bool) -> tuple[bool, str]:
    """Whether to compile, and why; `auto` says yes only where it is likely to pay for itself.

    >>> choose_compile("auto", 30, 100_000, on_cuda=False)
    (False, 'on a CPU it takes minutes and gains nothing')
    """
    if wanted == "off":
        return False, "compile=off"
    if num_layers == 0:
        return False, "the model repeats no layers"
    if wanted == "on":
        return True, "compile=on"
    if not on_cuda:
        return False, "on a CPU it takes minutes and gains nothing"
    if num_steps < PAYS_AFTER_STEPS:
        return False, f"{num_steps} steps are too few to make up for compiling"
    return True, f"{num_steps} steps make up for compiling"


def compile_layers(module: nn.Module) -> None:
    """Compile the repeated layers in place, for any length of rows; names and weights stay."""
    for layer in repeated_layers(module):
        layer.compile(dynamic=True)
