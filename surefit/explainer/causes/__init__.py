"""All causes: by area for the documentation, by code for matching."""

from __future__ import annotations

from surefit.explainer.cause import Cause
from surefit.explainer.causes import (
    dataset_errors,
    distributed_errors,
    dtype_errors,
    hub_errors,
    label_errors,
    loss_errors,
    memory_errors,
    padding_errors,
    shape_errors,
    weight_errors,
)

AREAS: dict[str, tuple[Cause, ...]] = {
    "Padding and batches": padding_errors.CAUSES,
    "Shapes and convolutions": shape_errors.CAUSES,
    "Ids and labels": label_errors.CAUSES,
    "Loss values": loss_errors.CAUSES,
    "Gradients": loss_errors.GRADIENTS,
    "Dtypes": dtype_errors.CAUSES,
    "Devices": memory_errors.DEVICES,
    "Memory": memory_errors.CAUSES,
    "Distributed training and workers": distributed_errors.CAUSES,
    "Weights and checkpoints": weight_errors.CAUSES,
    "Models and tokenizers": hub_errors.CAUSES,
    "LoRA adapters": weight_errors.ADAPTERS,
    "Datasets and Trainer": dataset_errors.CAUSES,
}

_SORTED = sorted((cause for area in AREAS.values() for cause in area), key=lambda cause: cause.code)

CAUSES: dict[str, Cause] = {cause.code: cause for cause in _SORTED}
"""Where a message matches two causes, the lower code explains it."""

assert len(CAUSES) == len(_SORTED), "two causes have the same code"
