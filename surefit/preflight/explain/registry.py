"""All causes by their code."""

from __future__ import annotations

from surefit.preflight.explain import (
    data,
    dtypes,
    gradients,
    hub,
    labels,
    loading,
    lora,
    memory,
    padding,
    processes,
    shapes,
    trainer,
)
from surefit.preflight.explain.cause import Cause

AREAS = {
    "Rows into batches": padding.CAUSES,
    "Shapes": shapes.CAUSES,
    "Ids and labels": labels.CAUSES,
    "Gradients and losses": gradients.CAUSES,
    "Dtypes and devices": dtypes.CAUSES,
    "Memory": memory.CAUSES,
    "Several processes": processes.CAUSES,
    "Weights and checkpoints": loading.CAUSES,
    "Models and tokenizers": hub.CAUSES,
    "Adapters": lora.CAUSES,
    "Data sets": data.CAUSES,
    "Settings": trainer.CAUSES,
}

CAUSES: dict[str, Cause] = {cause.code: cause for area in AREAS.values() for cause in area}
assert len(CAUSES) == sum(len(area) for area in AREAS.values()), "a code is there twice"
