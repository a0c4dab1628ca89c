"""Options for a run that does not fit: config changes, each with its predicted peak memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.memory.held_memory import held_bytes
from surefit.memory.limit import Limit
from surefit.memory.predict_peak import base_bytes, peak_of, sharing_of, trace_batch, worst_batch
from surefit.memory.trace_step import Traced
from surefit.models.gradient_checkpointing import enable_checkpointing, supports_checkpointing
from surefit.models.meta_copy import meta_copy
from surefit.models.sharding import can_be_divided
from surefit.pipeline.pipeline import Job

if TYPE_CHECKING:
    from torch import nn

CHECKPOINTING, LORA, LORA_RANK = "checkpointing", "lora.r", 16
MOST_PROCESSES = 1024
"""The largest number of processes that is tried."""
MIN_LENGTH = 32
Option = dict[str, Any]
"""What to `set`, its `predicted_peak_bytes`, and whether it `fits`, as the plan shows it."""


@dataclass(frozen=True)
class Change:
    """A changed job, changes to its model by config key, and its peak where it is known."""

    job: Job
    model: tuple[str, ...] = ()
    peak_bytes: int | None = None

    def settings(self, before: Job) -> dict[str, Any]:
        """Values of the config keys that differ from those of the job as it was."""
        now, then = _settings(self.job), _settings(before)
        values = {CHECKPOINTING: True, LORA: LORA_RANK}
        changed = {key: value for key, value in now.items() if value != then[key]}
        return {**changed, **{key: values[key] for key in self.model}}


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
        """Predicted peak memory on the largest micro-batch of a job."""
        return peak_of(self.trace(job, model), self.base, self.limit)

    def option(self, settings: Mapping[str, Any], peak: int) -> Option:
        """Settings with the peak that they lead to."""
        fits = peak <= self.limit.bytes
        return {"set": dict(settings), "predicted_peak_bytes": peak, "fits": fits}


def advise(job: Job, limit: Limit, max_length: int | None, peak: int | None = None) -> list[Option]:
    """Options for a run that does not fit, those that change the training least first.

    Combinations follow only if no single change fits. `peak` is the predicted peak memory of the
    run as it is.
    """
    trials, found = Trials(job, limit), list[Option]()
    for make in (_single_changes, _combined_changes):
        for change in make(trials, peak):
            settings = change.settings(job)
            if settings and settings not in [option["set"] for option in found]:
                known = change.peak_bytes
                peak_bytes = trials.peak(change.job, change.model) if known is None else known
                found.append(trials.option(settings, peak_bytes))
        if make is _single_changes and max_length is not None:
            found += _shorter(trials)
        if any(option["fits"] for option in found):
            break
    return found


def _single_changes(trials: Trials, peak: int | None) -> Iterator[Change]:
    """One change each: of the micro-batches, the model, or how processes share it."""
    keys = _model_changes(trials.job.pipeline.module)
    yield _smaller(trials, trials.job, peak)
    yield from (Change(trials.job, (key,)) for key in keys if key != LORA)
    yield Change(_divided(trials.job))
    yield from _more_processes(trials, ())
    yield from (Change(trials.job, (key,)) for key in keys if key == LORA)


def _combined_changes(trials: Trials, peak: int | None) -> Iterator[Change]:
    """Several changes at once: first those that train the same, then all of them."""
    job, keys = trials.job, _model_changes(trials.job.pipeline.module)
    saving, divided = tuple(key for key in keys if key != LORA), _divided(job)
    smaller = _smaller(trials, divided, peak if divided is job else None)
    yield smaller
    yield Change(smaller.job, saving)
    yield from _more_processes(trials, saving)
    yield Change(job, keys)
    yield Change(smaller.job, keys)


def _smaller(trials: Trials, job: Job, peak: int | None) -> Change:
    """The job in the largest micro-batches that fit; as it is, where rows do not count them."""
    if job.batches.max_tokens is not None or job.batches.batch_size == 1:
        return Change(job)
    smaller, peak = largest_batch(trials, job, peak)
    return Change(smaller, peak_bytes=peak)


def _divided(job: Job) -> Job:
    """The job with its model divided over its processes, where there are several."""
    several = job.batches.num_processes > 1 and can_be_divided(job.pipeline.module)
    return replace(job, parallel="fsdp") if several else job


def _more_processes(trials: Trials, model: tuple[str, ...]) -> Iterator[Change]:
    """The model divided over the fewest processes that it fits in, by doubling.

    Only where each process has a device of its own. It cannot have less than a row per process; the
    micro-batches stay, or become smaller.
    """
    job, batches = trials.job, trials.job.batches
    if not trials.limit.on_device or batches.max_tokens is not None:
        return
    if not can_be_divided(job.pipeline.module):
        return
    count = batches.num_processes * 2
    while count <= MOST_PROCESSES:
        rows = max(batches.batch_size * batches.micro_per_step // count, 1)
        size = next(size for size in divisors(rows) if size <= batches.batch_size)
        spread = replace(batches, num_processes=count, batch_size=size, grad_accum=rows // size)
        more = replace(job, batches=spread, parallel="fsdp")
        # Where the shards alone do not fit, nothing needs to be traced.
        if _held_bytes(more) <= trials.limit.bytes:
            peak = trials.peak(more, model)
            if peak <= trials.limit.bytes:
                yield Change(more, model, peak)
                return
        count *= 2


def _held_bytes(job: Job) -> int:
    return held_bytes(job.pipeline.module, sharing_of(job), job.autocast_dtype).total


def whole_model_peak(job: Job, limit: Limit) -> int | None:
    """Peak memory of a process that holds the whole model; None if that alone does not fit."""
    whole = replace(job, parallel="ddp")
    return None if _held_bytes(whole) > limit.bytes else Trials(job, limit).peak(whole)


def divisors(number: int) -> list[int]:
    """All divisors, the largest first.

    >>> divisors(12)
    [12, 6, 4, 3, 2, 1]
    """
    return [size for size in range(number, 0, -1) if number % size == 0]


def largest_batch(trials: Trials, job: Job, current_peak: int | None = None) -> tuple[Job, int]:
    """The largest micro-batch of the same effective batch size that fits, and its peak memory.

    If none fits, it is one row. `current_peak` is the peak at the current size, if known.
    """
    batches = job.batches
    peak = trials.peak(job) if current_peak is None else current_peak
    rows = batches.batch_size * batches.grad_accum
    for size in [size for size in divisors(rows) if size < batches.batch_size]:
        if peak <= trials.limit.bytes:
            break
        job = replace(job, batches=replace(batches, batch_size=size, grad_accum=rows // size))
        peak = trials.peak(job)
    return job, peak


def _settings(job: Job) -> dict[str, Any]:
    """The config keys of the processes and of the micro-batches."""
    return {
        "processes": job.batches.num_processes,
        "parallel": job.parallel,
        "batch_size": job.batches.batch_size,
        "grad_accum": job.batches.grad_accum,
    }


def _shorter(trials: Trials) -> Iterator[Option]:
    """The longest of 1/2, 1/4, … of the sequence length that fits.

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
        option = trials.option(
            {"max_seq_length": length}, peak_of(shorter, trials.base, trials.limit)
        )
        if option["fits"]:
            yield option
            return


def _model_changes(module: nn.Module) -> tuple[str, ...]:
    """Config keys of changes to the model that save memory.

    LoRA is one for a transformers model whose weights are all trained.
    """
    saving = (CHECKPOINTING,) if supports_checkpointing(module) else ()
    whole = all(weight.requires_grad for weight in module.parameters())
    adapts = whole and hasattr(module, "config") and _adaptable(module)
    return (*saving, LORA) if adapts else saving


def _adaptable(module: Any) -> list[str]:
    """Names of the linear layers that get LoRA: all but the output embeddings."""
    from torch import nn

    last = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
    parts = module.named_modules()
    return [name for name, part in parts if isinstance(part, nn.Linear) and part is not last]


def _add_lora(module: nn.Module) -> None:
    from peft import LoraConfig

    from surefit.models.lora import insert_adapters

    insert_adapters(module, LoraConfig(r=LORA_RANK, target_modules=_adaptable(module)))


MODEL_CHANGES: dict[str, Callable[[Any], None]] = {
    CHECKPOINTING: enable_checkpointing,
    LORA: _add_lora,
}
