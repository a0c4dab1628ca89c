"""The width of features that one's own nn.Module takes: seen by trying it, met by a projection.

Nothing in a module says what its forward reads. So zeros are sent through it; where they fail at
a layer that takes another width, an AdaptiveProjection is put before that layer. The module keeps
its class, its arguments and its attributes, and gains one submodule, which is saved with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from surefit.encode.features.feature_layout import Hints
from surefit.errors import FindingError
from surefit.kernels.preserve_state import preserved_state
from surefit.models.call import match_arguments

if TYPE_CHECKING:
    from torch import nn

    from surefit.models.feature_model import AdaptiveProjection

NAME = "adaptive_projection"
_SIZES = ("in_features", "input_size", "embed_dim")
"""Where layers of torch keep the width they take: Linear, RNN and its kin, MultiheadAttention."""


@dataclass(frozen=True)
class SizeMismatch:
    """A layer or part that fails on the features, for it takes another width."""

    layer: str
    takes: int


def layer_input_size(layer: nn.Module) -> int | None:
    """The width of the last axis that a layer takes; None where it takes any, or is none."""
    sizes = (getattr(layer, name, None) for name in _SIZES)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def module_hints(module: nn.Module) -> Hints:
    """What a module says of the rows: the widths of its layers, and whether it takes a shape."""
    if _is_lazy(module) or hasattr(module, NAME):  # trying would settle its sizes, or has
        return Hints()
    found = (layer_input_size(layer) for layer in module.modules())
    widths = tuple(dict.fromkeys(width for width in found if width is not None))
    return Hints(layers=widths, accepts=partial(accepts, module))


def _is_lazy(module: nn.Module) -> bool:
    from torch.nn.parameter import is_lazy

    return any(is_lazy(parameter) for parameter in module.parameters())


def accepts(module: nn.Module, steps: int, width: int) -> bool:
    """Whether two rows of zeros of that shape go through the module."""
    return _try(module, steps, width) is None


def find_size_mismatch(module: nn.Module, steps: int, width: int) -> SizeMismatch | None:
    """The part that such rows fail in, where a layer of it takes another width than they have."""
    if _is_lazy(module):
        return None
    failed = _try(module, steps, width)
    if failed is None or failed.layer is None or failed.width != width:
        return None
    takes = layer_input_size(failed.layer)
    part = failed.part or failed.layer
    name = next(name for name, each in module.named_modules() if each is part)
    return SizeMismatch(name, takes) if takes is not None and takes != width else None


@dataclass
class _Failure:
    """The last sized layer that was entered, and the outermost part that was given the rows."""

    rows: Any = None
    layer: nn.Module | None = None
    width: int | None = None
    part: nn.Module | None = None

    def enter(self, part: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        given: Any = next(iter([*args, *kwargs.values()]), None)
        if self.part is None and given is self.rows:
            self.part = part
        if layer_input_size(part) is not None:
            self.layer = part
            self.width = given.shape[-1] if getattr(given, "ndim", 0) else None


def _try(module: nn.Module, steps: int, width: int) -> _Failure | None:
    """None where the module takes such rows, else where it failed."""
    import torch

    batch = {
        "inputs_embeds": torch.zeros(2, steps, width),
        "attention_mask": torch.ones(2, steps, dtype=torch.int64),
        "masked_steps": torch.zeros(2, steps, dtype=torch.int64),
    }
    failure = _Failure(batch["inputs_embeds"])
    parts = [part for part in module.modules() if part is not module or not list(part.children())]
    hooks = [part.register_forward_pre_hook(failure.enter, with_kwargs=True) for part in parts]
    try:
        call, _ = match_arguments(module, list(batch))
        with preserved_state(module), torch.no_grad():
            call(module, batch)
    except FindingError:  # it needs columns that are not known yet
        return _Failure()
    except Exception:  # whatever a module of the user's raises; the probe will say it
        return failure
    finally:
        for hook in hooks:
            hook.remove()
    return None


class _Project:
    """Called before a layer: projects what it is given. Copied along with the module."""

    def __init__(self, projection: AdaptiveProjection) -> None:
        self.projection = projection

    def __call__(self, layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        given = next(iter([*args, *kwargs.values()]))
        projected = self.projection(given)  # attention is given it as query, key and value
        return (
            tuple(projected if each is given else each for each in args),
            {key: projected if each is given else each for key, each in kwargs.items()},
        )


def insert_projection(module: nn.Module, layer: str, width: int, takes: int) -> AdaptiveProjection:
    """Put a projection before a layer, as a submodule that is trained and saved."""
    from surefit.models.feature_model import AdaptiveProjection

    projection = AdaptiveProjection(takes, width)
    parameter = next(module.parameters(), None)
    if parameter is not None:
        projection.to(parameter.device)
    projection.before = layer
    module.get_submodule(layer).register_forward_pre_hook(_Project(projection), with_kwargs=True)
    module.add_module(NAME, projection)
    return projection


def remove_projection(module: nn.Module, width: int) -> None:
    """Take out a projection that was put in for data of another width."""
    projection = getattr(module, NAME, None)
    layer = getattr(projection, "before", None)
    if projection is None or layer is None or projection.width == width:
        return
    hooks = module.get_submodule(layer)._forward_pre_hooks
    for key in [key for key, hook in hooks.items() if isinstance(hook, _Project)]:
        del hooks[key]
        module.get_submodule(layer)._forward_pre_hooks_with_kwargs.pop(key, None)
    delattr(module, NAME)


def projection_recipe(module: nn.Module) -> dict[str, Any]:
    """What is needed to put the module's projection in again; empty where it has none."""
    projection = getattr(module, NAME, None)
    if projection is None or getattr(projection, "before", None) is None:
        return {}
    linear = projection.linear
    recipe = {
        "layer": projection.before,
        "width": linear.in_features,
        "takes": linear.out_features,
    }
    return {"projection": recipe}


def restore_projection(module: nn.Module, recipe: Mapping[str, Any]) -> None:
    """Put in the projection of a saved module, unless it is the trained object itself."""
    if "projection" in recipe and not hasattr(module, NAME):
        insert_projection(module, **recipe["projection"])
