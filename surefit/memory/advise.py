"""Options for a run that does not fit: config changes, each with its predicted peak memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.config import Lora
from surefit.memory.limit import Limit
from surefit.memory.predict_peak import base_bytes, peak_of, sharing_of, trace_batch, worst_batch
from surefit.memory.trace_step import Traced
from surefit.models.call import is_transformers
from surefit.models.lora import adapt
from surefit.models.model_source import Built
from surefit.models.sharding import can_shard, meta_copy
from surefit.models.transformers_models import enable_checkpointing, supports_checkpointing
from surefit.pipeline.pipeline import Job

if TYPE_CHECKING:
    from torch import nn

CHECKPOINTING, LORA, LORA_RANK = "checkpointing", "lora.r", 16
MIN_LENGTH = 32
Option = dict[str, Any]
"""What to `set`, its `predicted_peak_bytes`, and whether it `fits`, as the plan shows it."""


class Trials:
    """Predicts the peak memory of changed runs, by tracing changed copies of the model."""

    def __init__(self, job: Job, limit: Limit) -> None:
        self.job, self.limit = job, limit
        # Measured once, because each trace leaves a little on the heap.
        self.base = base_bytes(job, limit)

    def trace(self, job: Job, model: tuple[str, ...] = ()) -> Traced:
        """Trace the largest micro-batch of a job, with changes to a copy of the model."""
        module, call = self.job.on_meta
        if model:
            module, call = meta_copy(module, call)
            for key in model:
                MODEL_CHANGES[key](module)
        return trace_batch(job, module, call, worst_batch(job), sharing_of(job))

    def peak(self, job: Job, model: tuple[str, ...] = ()) -> int:
        """Predict peak memory on the largest micro-batch of a job."""
        return peak_of(self.trace(job, model), self.base, self.limit)

    def largest_batch(self, job: Job, peak: int | None = None) -> Job:
        """Return the job with the largest micro-batches that fit, or with micro-batches of one row.

        The effective batch size stays the same. Micro-batches that are bounded by their tokens
        stay as they are. `peak` is that of the job as it is, if known.
        """
        batches = job.batches
        rows = batches.batch_size * batches.grad_accum
        smaller = [size for size in divisors(rows) if size < batches.batch_size]
        for size in smaller if batches.max_tokens is None else ():
            if (self.peak(job) if peak is None else peak) <= self.limit.bytes:
                break
            job = replace(job, batches=replace(batches, batch_size=size, grad_accum=rows // size))
            peak = None
        return job


def advise(job: Job, limit: Limit, max_length: int | None, peak: int | None = None) -> list[Option]:
    """Return options for a run that does not fit, those that change the training least first.

    All changes at once follow if no single one fits. `peak` is the peak memory of the run as it is.
    """
    trials, found = Trials(job, limit), list[Option]()
    keys, smaller = _model_changes(job.pipeline.module), trials.largest_batch(job, peak)
    several = job.batches.num_processes > 1 and can_shard(job.pipeline.module)
    sharded = replace(job, parallel="fsdp") if several else job
    saving = [key for key in keys if key != LORA]
    changes: list[tuple[Job, tuple[str, ...]]] = [(smaller, ()), *((job, (key,)) for key in saving)]
    changes += [(sharded, ()), *((job, (key,)) for key in keys if key == LORA)]

    def add(changed: Job, model: tuple[str, ...]) -> None:
        settings = {k: v for k, v in _settings(changed).items() if v != _settings(job)[k]}
        settings |= {key: {CHECKPOINTING: True, LORA: LORA_RANK}[key] for key in model}
        if settings and settings not in [option["set"] for option in found]:
            found.append(_option(settings, trials.peak(changed, model), limit))

    for changed, model in changes:
        add(changed, model)
    found += _shorter(trials) if max_length is not None else ()
    if not any(option["fits"] for option in found):
        add(job, keys)
        add(replace(smaller, parallel=sharded.parallel), keys)
    return found


def _option(settings: dict[str, Any], peak: int, limit: Limit) -> Option:
    return {"set": settings, "predicted_peak_bytes": peak, "fits": peak <= limit.bytes}


def divisors(number: int) -> list[int]:
    """Return all divisors, the largest first.

    >>> divisors(12)
    [12, 6, 4, 3, 2, 1]
    """
    return [size for size in range(number, 0, -1) if number % size == 0]


def _settings(job: Job) -> dict[str, Any]:
    """Return the config keys that changes of the job set."""
    batches = job.batches
    sizes = {"batch_size": batches.batch_size, "grad_accum": batches.grad_accum}
    return {"parallel": job.parallel, **sizes}


def _shorter(trials: Trials) -> Iterator[Option]:
    """Yield the longest of 1/2, 1/4, … of the sequence length that fits.

    Activations are nearly linear in the positions, so that nothing is traced for it.
    """
    job, traced = trials.job, trials.trace(trials.job)
    lengths = job.batches.lengths[job.batches.worst_rows(job.epochs)].astype(np.int64)
    length = int(lengths.max())
    while length // 2 >= MIN_LENGTH:
        length //= 2
        share = np.minimum(lengths, length).sum() / lengths.sum()
        activations, heap = round(share * traced.activations), round(share * traced.heap_bytes)
        shorter = replace(traced, activations=activations, heap_bytes=heap)
        peak = peak_of(shorter, trials.base, trials.limit)
        if peak <= trials.limit.bytes:
            yield _option({"max_seq_length": length}, peak, trials.limit)
            return


def _model_changes(module: nn.Module) -> tuple[str, ...]:
    """Return the config keys of changes to the model that save memory.

    LoRA is one for a transformers model whose weights are all trained.
    """
    saving = (CHECKPOINTING,) if supports_checkpointing(module) else ()
    whole = all(weight.requires_grad for weight in module.parameters())
    return (*saving, LORA) if whole and is_transformers(module) else saving


MODEL_CHANGES: dict[str, Callable[[Any], object]] = {
    CHECKPOINTING: enable_checkpointing,
    LORA: lambda module: adapt(Built(module), Lora(r=LORA_RANK), None, None),
}
