"""Checks of a module and of the batches it gets: what is trained, single rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.order import Batches
from surefit.errors import UsageError, describe_error
from surefit.findings import Finding, rule
from surefit.speed.numerics import preserved_state

if TYPE_CHECKING:
    from torch import nn

UNREGISTERED_LAYERS = rule(
    "SF219",
    "warning",
    "layers that are not part of the model",
    why=(
        "A layer in a plain list or dict, or a tensor that is no Parameter, is neither trained nor "
        "moved to the device nor saved."
    ),
    fix="Use nn.ModuleList, nn.ModuleDict or nn.Parameter.",
    accept="These layers are neither trained nor saved.",
)


SINGLE_ROW_BATCH_NORM = rule(
    "SF313",
    "error",
    "a batch of one row meets batch statistics",
    why="Batch normalisation cannot train on a single row and raises in the middle of the run.",
    fix="Choose a batch size of 2 or more.",
)


NOTHING_TRAINABLE = rule(
    "SF314",
    "error",
    "nothing to train",
    why="No parameter of the model takes a gradient, so no step could change anything.",
    fix="Let some parameters have requires_grad=True.",
)


def check_trainable(module: nn.Module) -> Iterator[Finding]:
    """Yield a model needs something that can learn."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        count = sum(parameter.numel() for parameter in module.parameters())
        yield NOTHING_TRAINABLE.finding(
            f"None of the model's {count:,} parameters takes a gradient."
        )


def check_registered(module: nn.Module) -> Iterator[Finding]:
    """Layers and weights that a module uses without having them as its own are never trained."""
    stray = [*dict.fromkeys(find_strays(module).values())]
    if stray:
        shown = ", ".join(repr(name) for name in stray[:3])
        yield UNREGISTERED_LAYERS.finding(
            f"{type(module).__name__} keeps layers or weights in {shown}, where torch does not see "
            "them: they are neither trained nor saved."
        )


def find_strays(module: nn.Module) -> dict[int, str]:
    """Return the weights in attributes that torch does not look into, by their ids."""
    from torch import Tensor, nn

    own = {id(part) for part in (*module.modules(), *module.parameters())}
    stray: dict[int, str] = {}
    for name, part in module.named_modules():
        for attribute, value in vars(part).items():
            held = value.values() if isinstance(value, dict) else value
            items = held if isinstance(value, list | tuple | dict) else [value]
            for item in items if not attribute.startswith("_") else ():
                weights = [*item.parameters()] if isinstance(item, nn.Module) else [item]
                is_layer = isinstance(item, nn.Module)
                is_weight = isinstance(item, Tensor) and item.requires_grad and item.is_leaf
                if id(item) not in own and (is_layer or is_weight):
                    where = f"{name}.{attribute}".lstrip(".")
                    stray |= dict.fromkeys(map(id, [item, *weights]), where)
    return stray


def check_optimizer(module: nn.Module, optimizer: Any) -> None:
    """Refuse an optimizer that was made from other parameters or needs a closure, or a function
    that makes none."""
    if optimizer is None:
        return
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    made = optimizer
    if not hasattr(optimizer, "param_groups"):
        fix = "Pass a function of the parameters that returns a torch.optim.Optimizer."
        try:
            made = optimizer(trained)
        except Exception as error:
            message = f"optimizer fails on the model's parameters: {describe_error(error)}"
            raise UsageError(message, fix) from error
        if not hasattr(made, "param_groups") or not hasattr(made, "step"):
            message = f"optimizer returned a {type(made).__name__}; expected an Optimizer."
            raise UsageError(message, fix)
    for part in getattr(made, "parts", (made,)):
        closure = inspect.signature(part.step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            raise UsageError(
                f"{type(part).__name__}.step needs a closure that computes the loss again; a step "
                "has one forward and one backward pass.",
                "Use an optimizer that steps by gradients, such as AdamW, SGD or Rprop.",
            )
    own = {id(parameter) for parameter in trained}
    if not any(id(p) in own for group in made.param_groups for p in group["params"]):
        raise UsageError(
            "The optimizer holds none of the parameters that are trained.",
            "Pass a function, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1): "
            "it gets the parameters of the model as it is trained.",
        )


def find_min_rows(module: nn.Module, one_row: Callable[[], Any] | None) -> tuple[int, str]:
    """Return how many rows the module needs in training, 1 or 2, and the layer that needs them.

    Batch normalisation needs several values per channel. One row has them if the layer sees several
    positions of it, so `one_row`, a call with a single row, is tried; without it, 2 is assumed.
    """
    from torch.nn.modules.batchnorm import _BatchNorm

    layer = next((n for n, part in module.named_modules() if isinstance(part, _BatchNorm)), None)
    if layer is None:
        return 1, ""
    if one_row is None:
        return 2, layer
    with preserved_state(module):
        module.train()
        try:
            one_row()
        except ValueError as error:
            if "more than 1 value per channel" in str(error):
                return 2, layer
        except Exception:  # reported by the probe of the first batch, if it is a fault
            return 1, layer
    return 1, layer


def check_single_rows(batches: Batches, epochs: int, layer: str) -> Iterator[Finding]:
    """Yield a model that needs two rows in training cannot get a micro-batch of one row."""
    if batches.min_rows == 1:
        return
    for epoch in range(batches.examined_epochs(epochs)):
        if (np.diff(batches.epoch(epoch).micro_starts) == 1).any():
            size = batches.batch_size
            fix = "Train on two rows or more." if batches.num_rows < 2 else ""
            if size == 1:
                fix = "Choose --batch-size 2 or more, or replace the layer by GroupNorm."
            elif batches.max_tokens is not None:
                fix = "Raise max_tokens so that two of the longest rows fit, or leave it out."
            yield SINGLE_ROW_BATCH_NORM.finding(
                f"Epoch {epoch + 1} has a micro-batch of one row, and layer {layer!r} needs two "
                f"or more ({batches.num_rows} rows, batch size {size}).",
                fix=fix,
            )
            return
