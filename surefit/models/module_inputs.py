"""Finds the shapes that a custom module accepts by running a batch of zeros through it.

A module does not declare what its forward reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

from surefit.batches.field import SEQUENCES
from surefit.encode.features.feature_layout import Hints
from surefit.errors import FindingError
from surefit.kernels.numerics import preserved_state
from surefit.models.call import CLOCK, Names, is_transformers, match_arguments
from surefit.tasks.task_spec import Batch

if TYPE_CHECKING:
    from torch import nn

ROWS_TRIED = 7
"""Rows of a trial; few modules have as many outputs, so that rows are told apart."""
SEQUENCE_NAMES = {*SEQUENCES, "attention_mask"}
"""Arguments of a forward that reads sequences."""
_SIZES = ("in_features", "input_size", "embed_dim")
"""Attributes of torch layers with the size they expect: Linear, RNN, MultiheadAttention."""


@dataclass(frozen=True)
class SizeMismatch:
    """A layer or submodule that fails on the features because it expects another size."""

    layer: str
    expected: int


def layer_input_size(layer: nn.Module) -> int | None:
    """The size of the last axis that a layer expects; None where it accepts any size."""
    sizes = (getattr(layer, name, None) for name in _SIZES)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def module_hints(module: nn.Module) -> Hints:
    """The sizes that the layers of a module expect, and a test whether it accepts a shape."""
    arguments = tuple(signature(module.forward).parameters)
    known = Hints(image=first_layer(module), arguments=arguments, required=_required(module))
    if _is_lazy(module):  # a run would fix the sizes of lazy layers
        return replace(known, reads_vectors=lambda size: None)
    found = (layer_input_size(layer) for layer in module.modules())
    sizes = tuple(dict.fromkeys(size for size in found if size is not None))
    return replace(
        known,
        layers=sizes,
        accepts=partial(accepts, module),
        reads_vectors=lambda size: _gives_rows(module, "features", size),
        reads_images=partial(_gives_rows, module, "pixel_values"),
        runs_on=partial(_runs_on, module),
    )


def _required(module: nn.Module) -> tuple[str, ...] | None:
    """The arguments of a custom module's forward that a column must be found for."""
    if is_transformers(module):
        return None
    parameters = signature(module.forward).parameters.values()
    named = (p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
    return tuple(p.name for p in named if p.default is p.empty and p.name not in CLOCK)


def first_layer(module: nn.Module) -> dict[str, Any]:
    """The channels that a convolution reads, or the inputs of a Linear, whichever comes first.

    `convolutions` are the channels that any of them reads.
    """
    from torch import nn

    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) and layer.in_channels:
            layers = [each for each in module.modules() if isinstance(each, nn.Conv2d)]
            read = sorted({each.in_channels for each in layers})
            return {"channels": layer.in_channels, "inputs": None, "convolutions": read}
        if isinstance(layer, nn.Linear) and layer.in_features:
            return {"channels": None, "inputs": layer.in_features}
    return {"channels": None, "inputs": None}


def _is_lazy(module: nn.Module) -> bool:
    from torch.nn.parameter import is_lazy

    return any(is_lazy(parameter) for parameter in module.parameters())


def accepts(module: nn.Module, length: int, feature_size: int) -> bool:
    """Whether the module runs on two rows of zeros of that shape."""
    return _try(module, length, feature_size) is None


def run_once(module: nn.Module, batch: Batch, known: Names | None = None) -> Any:
    """What the module returns for a batch, without a trace of the run in it."""
    import torch

    call, _ = match_arguments(module, list(batch), known)
    with preserved_state(module), torch.no_grad():
        return call(module, batch)


def _gives_rows(module: nn.Module, column: str, *shape: int) -> bool | None:
    """Whether the module gives one output per row of that shape, or per pixel of an image.

    None if it reads more columns.
    """
    import torch

    if SEQUENCE_NAMES & {*signature(module.forward).parameters}:
        return False
    try:
        logits = run_once(module, {column: torch.zeros(ROWS_TRIED, *shape)}).logits
    except FindingError:
        return None
    except Exception:  # user code may raise anything; the first-batch probe reports it
        return False
    per_pixel = len(shape) == 3 and logits is not None and logits.ndim == 4
    return logits is None or ((logits.ndim <= 2 or per_pixel) and len(logits) == ROWS_TRIED)


def _runs_on(
    module: nn.Module, shapes: Mapping[str, Sequence[int]], integers: Collection[str]
) -> bool:
    """Whether the module runs on two rows of zeros with these columns."""
    import torch

    batch = {
        name: torch.zeros(2, *shape, dtype=torch.int64 if name in integers else torch.float32)
        for name, shape in shapes.items()
    }
    try:
        run_once(module, batch)
    except Exception:  # user code may raise anything; the first-batch probe reports it
        return False
    return True


def find_size_mismatch(module: nn.Module, length: int, feature_size: int) -> SizeMismatch | None:
    """The submodule that fails on such rows, if a layer in it expects another feature size."""
    if _is_lazy(module):
        return None
    failed = _try(module, length, feature_size)
    if failed is None or failed.layer is None or failed.received != feature_size:
        return None
    expected = layer_input_size(failed.layer)
    if expected is None or expected == feature_size:
        return None
    part = failed.outermost or failed.layer
    name = next(name for name, each in module.named_modules() if each is part)
    return SizeMismatch(name, expected)


@dataclass
class _Failure:
    """The last sized layer that ran, and the outermost submodule that received the rows."""

    rows: Any = None
    layer: nn.Module | None = None
    received: int | None = None
    """The size of the last axis that the layer received."""
    outermost: nn.Module | None = None

    def enter(self, part: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        given: Any = next(iter([*args, *kwargs.values()]), None)
        if self.outermost is None and given is self.rows:
            self.outermost = part
        if layer_input_size(part) is not None:
            self.layer = part
            self.received = given.shape[-1] if getattr(given, "ndim", 0) else None


def _try(module: nn.Module, length: int, feature_size: int) -> _Failure | None:
    """None where the module runs on such rows, else where it failed."""
    import torch

    batch = {
        "inputs_embeds": torch.zeros(2, length, feature_size),
        "attention_mask": torch.ones(2, length, dtype=torch.int64),
        "masked_steps": torch.zeros(2, length, dtype=torch.int64),
    }
    failure = _Failure(batch["inputs_embeds"])
    parts = [part for part in module.modules() if part is not module or not list(part.children())]
    hooks = [part.register_forward_pre_hook(failure.enter, with_kwargs=True) for part in parts]
    try:
        run_once(module, batch)
    except FindingError:  # it requires columns that are not known yet
        return _Failure()
    except Exception:  # user code may raise anything; the first-batch probe reports it
        return failure
    finally:
        for hook in hooks:
            hook.remove()
    return None
