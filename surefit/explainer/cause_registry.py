"""All causes by their code."""

from __future__ import annotations

from surefit.explainer.cause import Cause
from surefit.explainer.causes import (
    dataset_errors,
    distributed_errors,
    dtype_errors,
    gradient_errors,
    hub_errors,
    label_errors,
    lora_errors,
    memory_errors,
    padding_errors,
    shape_errors,
    trainer_errors,
    weight_errors,
)

AREAS = {
    "Rows into batches": padding_errors.CAUSES,
    "Shapes": shape_errors.CAUSES,
    "Ids and labels": label_errors.CAUSES,
    "Gradients and losses": gradient_errors.CAUSES,
    "Dtypes and devices": dtype_errors.CAUSES,
    "Memory": memory_errors.CAUSES,
    "Several processes": distributed_errors.CAUSES,
    "Weights and checkpoints": weight_errors.CAUSES,
    "Models and tokenizers": hub_errors.CAUSES,
    "Adapters": lora_errors.CAUSES,
    "Data sets": dataset_errors.CAUSES,
    "Settings": trainer_errors.CAUSES,
}

CAUSES: dict[str, Cause] = {cause.code: cause for area in AREAS.values() for cause in area}
assert len(CAUSES) == sum(len(area) for area in AREAS.values()), "a code is there twice"
