"""Calls modules of torchvision's convention for detection: `forward(images, targets=None)`.

`images` is a list of tensors (C, H, W), `targets` a list of dicts with `boxes`, `labels` and, where
the data has them, `masks` (N, H, W) of 0 and 1. In training mode such a module returns a dict of
losses; in evaluation mode a list of dicts with `boxes`, `labels`, `scores` and perhaps `masks`,
whatever targets it gets.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from surefit.models.transformers_models import MODEL_FAILED, UNSUITABLE_MODEL
from surefit.speed.numerics import preserved_state
from surefit.targets.boxes import split_targets

TARGETS = ("boxes", "box_classes", "mask_runs")
FOUND = ("boxes", "labels", "scores")
CONVENTION = (
    "Let forward(images, targets=None) return a dict of losses in training mode, and in evaluation "
    "mode a list with a dict of boxes (N, 4), labels (N) and scores (N) for each image, and of "
    "masks (N, 1, H, W) from 0 to 1 if it segments the objects."
)
LEAST_MASK = 0.5
"""Values of a mask from which on a pixel belongs to the object."""
CONSTANT = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
"""Layers that stay in evaluation mode where the losses of validation rows are computed."""


def match_lists(module: nn.Module, columns: Sequence[str]) -> dict[str, str]:
    """Return which column each argument of forward gets: `targets.boxes` gets the boxes."""
    parameters = [
        each
        for each in inspect.signature(module.forward).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    required = [each.name for each in parameters if each.default is each.empty]
    if len(parameters) < 2 or len(required) > 2:
        named = ", ".join(each.name for each in parameters)
        raise UNSUITABLE_MODEL.error(
            f"{type(module).__name__}.forward({named}) does not take a list of images and a list "
            "of targets.",
            fix=CONVENTION,
        )
    images, targets = parameters[0].name, parameters[1].name
    return {images: "pixel_values", **{f"{targets}.{c}": c for c in TARGETS if c in columns}}


def call_lists(model: Any, batch: Mapping[str, Any], with_targets: bool) -> SimpleNamespace:
    """Return the losses of a batch, or what the module found in its images."""
    images = [*batch["pixel_values"]]
    if not with_targets:
        with _mode(model, training=False):
            return _read_found(model(images), [image.shape[-2:] for image in images])
    targets = split_targets(batch)
    for target in targets:
        target |= {name: masks.byte() for name, masks in target.items() if name == "masks"}
    if model.training:
        return _read_losses(model(images, targets))
    with _losses_only(model):
        return _read_losses(model(images, targets))


@contextmanager
def _mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Set the mode of all parts; each gets its own back."""
    before = {part: part.training for part in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for part, mode in before.items():
            part.training = mode


@contextmanager
def _losses_only(model: nn.Module) -> Iterator[None]:
    """Let a module that is being evaluated compute its losses, as it does in training mode only.

    Dropout and batch norm stay as in evaluation; buffers and random states are put back.
    """
    gradients = torch.is_grad_enabled()
    with preserved_state(model), torch.set_grad_enabled(gradients), _mode(model, training=True):
        for part in model.modules():
            if isinstance(part, CONSTANT):
                part.eval()
        torch.manual_seed(0)  # such modules draw the anchors that their losses use
        yield


def _read_losses(raw: Any) -> SimpleNamespace:
    """Return the sum of a dict of losses, and its parts."""
    is_dict = isinstance(raw, Mapping) and raw
    if not is_dict or not all(isinstance(v, torch.Tensor) and v.numel() == 1 for v in raw.values()):
        raise MODEL_FAILED.error(
            f"In training mode, the module returned {_shown(raw)}; expected a dict of losses, each "
            "one number.",
            fix=CONVENTION,
        )
    named = {str(name): value.reshape(()) for name, value in raw.items()}
    total = torch.stack([*named.values()]).sum()
    parts = {name.removeprefix("loss_"): value for name, value in named.items()}
    return SimpleNamespace(logits=None, loss=total, parts=parts, raw=named)


def _read_found(raw: Any, sizes: Sequence[tuple[int, int]]) -> SimpleNamespace:
    """Return what was found in each image; masks are true from 0.5 on."""
    count, detections = len(sizes), []
    is_listed = isinstance(raw, Sequence) and len(raw) == count
    if not is_listed or not all(isinstance(each, Mapping) and {*FOUND} <= {*each} for each in raw):
        raise MODEL_FAILED.error(
            f"In evaluation mode, the module returned {_shown(raw)} for {count} images; expected a "
            "list with a dict of boxes, labels and scores for each.",
            fix=CONVENTION,
        )
    for place, each in enumerate(raw):
        number = len(each["boxes"])
        shapes = [list(each[name].shape) for name in FOUND]
        if shapes != [[number, 4], [number], [number]]:
            raise MODEL_FAILED.error(
                f"Of image {place}, the module returned boxes, labels and scores of the shapes "
                f"{shapes}; expected [[N, 4], [N], [N]].",
                fix=CONVENTION,
            )
        scores = each["scores"]
        if number and not bool(((scores >= 0) & (scores <= 1)).all()):
            low, high = float(scores.min()), float(scores.max())
            raise MODEL_FAILED.error(
                f"Scores of image {place} range from {low:.3g} to {high:.3g}; expected 0 to 1.",
                fix="Return probabilities: the sigmoid or the softmax of the logits.",
            )
        detections.append(dict(each))
        if "masks" in each:
            masks, wanted = each["masks"], (number, *sizes[place])
            if masks.numel() != math.prod(wanted) or masks.shape[-2:] != sizes[place]:
                raise MODEL_FAILED.error(
                    f"Of image {place}, the module returned masks of the shape "
                    f"{list(masks.shape)}; expected {[number, 1, *sizes[place]]}.",
                    fix=CONVENTION,
                )
            detections[-1]["masks"] = masks.reshape(wanted) >= LEAST_MASK
    return SimpleNamespace(logits=None, loss=None, detections=detections, raw=raw)


def _shown(raw: Any) -> str:
    if isinstance(raw, torch.Tensor):
        return f"a tensor of shape {list(raw.shape)}"
    if isinstance(raw, Mapping):
        return f"a dict of {', '.join(map(repr, raw)) or 'nothing'}"
    if isinstance(raw, list | tuple):
        return f"a {type(raw).__name__} of {len(raw)}"
    return f"a {type(raw).__name__}"
