"""Unifies what a module returns: which of its outputs are the logits, and which is its loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from surefit.errors import UsageError
from surefit.models.load_weights import UNSUITABLE_MODEL

if TYPE_CHECKING:
    import torch

Key = str | int
SETTING = "outputs"
"""Where the Encoder's settings keep the user's choice, so that it is saved with the model."""
SCORES = ("logits", "scores", "score", "output", "outputs", "prediction", "predictions", "preds")
"""What a module may call the output that the loss is computed from."""


@dataclass(frozen=True)
class Picked:
    """The output that the loss, the metrics and the predictions are computed from.

    `tensors` are all outputs with a batch axis: by name, or numbered from 0. `key` is None where
    the module returns none to compute a loss from.
    """

    key: Key | None
    how: Literal["asked", "name", "size"]
    tensors: Mapping[Key, torch.Tensor]

    @property
    def others(self) -> dict[Key, torch.Tensor]:
        """The outputs that are not used."""
        return {key: value for key, value in self.tensors.items() if key != self.key}

    def as_choice(self) -> dict[str, Any]:
        """What plan.json has: the output that is used, all of them by shape, how it was chosen."""
        shapes = {str(key): list(value.shape[1:]) for key, value in self.tensors.items()}
        return {"used": self.key, "by": self.how, "returned": shapes}


def pick_output(raw: Any, sizes: Sequence[int | None] = (), asked: Key | None = None) -> Picked:
    """Find the logits in what a module returned: as asked for, by their name, or by their size.

    Numbers count the outputs with a batch axis, so that a loss before them changes none.

    >>> import torch
    >>> hidden, scores = torch.zeros(4, 8), torch.zeros(4, 3)
    >>> pick_output((hidden, scores), [3]).key
    1
    >>> pick_output({"hidden": hidden, "scores": scores}, asked="hidden").key
    'hidden'
    """
    import torch

    parts, named = _parts(raw)
    arrays = {k: v for k, v in parts.items() if isinstance(v, torch.Tensor) and v.ndim > 0}
    numbers: dict[Key, torch.Tensor] = dict(enumerate(arrays.values()))
    tensors = arrays if named else numbers
    if asked is not None:
        return Picked(_find(asked, tensors) if tensors else None, "asked", tensors)
    by_name = next((name for name in SCORES if named and name in tensors), None)
    if by_name is not None:
        return Picked(by_name, "name", tensors)
    has_loss = named and isinstance(parts.get("loss"), torch.Tensor)
    return Picked(None if has_loss else _by_size(tensors, sizes), "size", tensors)


def as_outputs(raw: Any, *sizes: int | None, asked: Key | None = None) -> Any:
    """The outputs of a model with attributes `logits` and `loss`, either of which may be None.

    Of several outputs without a name, the logits are the first that has so many scores; of several
    sizes, the first that an output has.

    >>> import torch
    >>> hidden, scores = torch.zeros(4, 8), torch.zeros(4, 3)
    >>> as_outputs((hidden, scores), 3).logits.shape
    torch.Size([4, 3])
    """
    import torch

    if asked is None and hasattr(raw, "logits"):
        return raw
    picked, (parts, named) = pick_output(raw, sizes, asked), _parts(raw)
    scalars = {k: v for k, v in parts.items() if isinstance(v, torch.Tensor) and v.ndim == 0}
    loss = parts.get("loss") if named else next(iter(scalars.values()), None)
    texts = {str(name): part for name, part in parts.items()} if named else {}
    found = {
        "logits": None if picked.key is None else picked.tensors[picked.key],
        "loss": loss if isinstance(loss, torch.Tensor) else None,
        "raw": raw,
    }
    return SimpleNamespace(**{**texts, **found})


def _parts(raw: Any) -> tuple[dict[Key, Any], bool]:
    """What a module returned, part by part, and whether the parts have names."""
    import torch

    if isinstance(raw, torch.Tensor):
        return {0: raw}, False
    if is_dataclass(raw) and not isinstance(raw, type):
        return {each.name: getattr(raw, each.name) for each in fields(raw)}, True
    if isinstance(raw, Mapping):
        return dict(raw), True
    if isinstance(raw, tuple | list):
        as_named = getattr(raw, "_asdict", None)
        return (dict(enumerate(raw)), False) if as_named is None else (as_named(), True)
    if hasattr(raw, "logits"):
        return {"logits": raw.logits, "loss": getattr(raw, "loss", None)}, True
    raise UNSUITABLE_MODEL.error(
        f"The model returned a {type(raw).__name__}; expected a tensor, tuple, dict, "
        "dataclass or ModelOutput.",
        fix="Return the logits.",
    )


def _find(asked: Key, tensors: Mapping[Key, torch.Tensor]) -> Key:
    """The output of this name or, counted from 0, of this number."""
    keys = list(tensors)
    for key in keys:
        if str(key) == str(asked):
            return key
    if str(asked).isdecimal() and int(asked) < len(keys):
        return keys[int(asked)]
    shown = ", ".join(f"{key} {list(value.shape)}" for key, value in tensors.items())
    raise UsageError(
        f"outputs is {asked!r}, which forward does not return. It returns: {shown}.",
        f"Write one of: {', '.join(f'outputs={key}' for key in keys)}.",
    )


def _by_size(tensors: Mapping[Key, torch.Tensor], sizes: Sequence[int | None]) -> Key | None:
    """The first output with so many scores on its last axis, or on the second; else the first."""

    def found(output: torch.Tensor) -> tuple[int, ...]:
        return (output.shape[-1], output.shape[1]) if output.ndim > 1 else (1,)

    fitting = (key for size in sizes for key in tensors if size in found(tensors[key]))
    return next(fitting, next(iter(tensors), None))
