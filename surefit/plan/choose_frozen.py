"""Chooses the precision in which a LoRA run holds its frozen matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from surefit.memory.predict_peak import trace_batch, worst_batch
from surefit.models.frozen_precision import may_lower
from surefit.models.model_source import ModelSource
from surefit.pipeline.job import Job


def choose_frozen(
    job: Job, source: ModelSource, earlier: Mapping[str, Any]
) -> tuple[Job, dict[str, str]]:
    """The Job with the precision of its frozen matrices, and the choice as the plan stores it.

    In mixed precision, matrix products with frozen weights are computed in the lower precision; on
    every device they may as well be stored in it. A model whose own code reads the dtype of its
    weights may fail then: its step is tried on the meta device. `earlier` are the choices of a
    resumed run; runs of earlier versions left the weights in float32.
    """
    dtype = job.autocast_dtype
    if job.parallel == "fsdp":  # it divides layers whose weights have one precision
        return job, {}
    if dtype is None or (earlier and "frozen" not in earlier):
        return job, {}
    if not may_lower(job.pipeline.module, source):
        return job, {}
    lowered = replace(job, frozen_dtype=dtype)
    if not earlier:
        try:
            trace_batch(lowered, *lowered.on_meta, worst_batch(lowered))
        except Exception:  # the model's own code may fail on the meta device in any way
            fresh = replace(job.pipeline)  # without the copy whose weights were cast
            return replace(job, pipeline=fresh), {}
    return lowered, {"frozen": str(dtype).removeprefix("torch.")}
