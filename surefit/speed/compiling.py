"""Chooses and applies torch.compile to the repeated layers of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

PAYS_AFTER_STEPS = 1000
"""Training steps on CUDA from which compiling, which takes about a minute, saves time."""


def repeated_layers(module: nn.Module) -> list[nn.Module]:
    """Return the longest ModuleList of one layer type, such as the blocks of a transformer."""
    lists = [
        list(part)
        for part in module.modules()
        if isinstance(part, nn.ModuleList) and len(part) > 1 and len({*map(type, part)}) == 1
    ]
    return max(lists, key=len, default=[])


def choose_compile(
    wanted: str, num_layers: int, num_steps: int, on_cuda: bool, padding_free: bool = False
) -> tuple[bool, str]:
    """Return whether to compile, and the reason; `auto` compiles only where it is likely to save
    time.

    Padding-free batches have other row lengths each time, for each of which the attention would be
    compiled again. `compile=on` pads its batches.

    >>> choose_compile("auto", 30, 100_000, on_cuda=False)
    (False, 'compiling takes minutes on a CPU and gains nothing')
    """
    if wanted == "off":
        return False, "compile=off"
    if num_layers == 0:
        return False, "the model has no repeated layers"
    if wanted == "on":
        return True, "compile=on"
    if not on_cuda:
        return False, "compiling takes minutes on a CPU and gains nothing"
    if padding_free:
        return False, "padding-free batches would be compiled again for each set of row lengths"
    if num_steps < PAYS_AFTER_STEPS:
        return False, f"{num_steps} steps are too few to repay compiling"
    return True, f"{num_steps} steps repay compiling"


def compile_layers(module: nn.Module) -> None:
    """Compile the repeated layers in place, with dynamic shapes; names and weights stay."""
    for layer in repeated_layers(module):
        layer.compile(dynamic=True)


@contextmanager
def not_compiled(module: nn.Module) -> Iterator[None]:
    """While the block runs, compiled parts run as they were; for passes with a key-value cache.

    A layer is compiled for its number and for the state of the cache, so that a few generated
    tokens would exceed Dynamo's limit of compilations, after which training is not compiled either.
    """
    compiled = [
        (part, part._compiled_call_impl)
        for part in module.modules()
        if part._compiled_call_impl is not None
    ]
    for part, _ in compiled:
        part._compiled_call_impl = None
    try:
        yield
    finally:
        for part, call in compiled:
            part._compiled_call_impl = call
