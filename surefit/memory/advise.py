"""Options for a run that does not fit: config changes, each with its predicted peak memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.memory.held_memory import held_bytes
from surefit.memory.limit import Limit
from surefit.memory.predict_peak import base_bytes, peak_of, sharing_of, trace_batch, worst_batch
from surefit.memory.trace_step import Traced
from surefit.models.gradient_checkpointing import enable_checkpointing, supports_checkpointing
from surefit.models.quantize import import_peft
from surefit.models.sharding import can_shard, meta_copy
from surefit.pipeline.pipeline import Job

if TYPE_CHECKING:
    from torch import nn

CHECKPOINTING, LORA, LORA_RANK = "checkpointing", "lora.r", 16
MOST_PROCESSES = 1024
"""The largest number of processes that is tried."""
MIN_LENGTH = 32
Change = tuple[Job, tuple[str, ...]]
"""A changed job, and changes to its model by config key."""
Option = dict[str, Any]
"""What to `set`, its `predicted_peak_bytes`, and whether it `fits`, as the plan shows it."""


class Trials:
    """Predicts the peak memory of changed runs, by tracing changed copies of the model.

    `peak` is that of the run as it is, if known.
    """

    def __init__(self, job: Job, limit: Limit, peak: int | None = None) -> None:
        self.job, self.limit = job, limit
        # Measured once, because each trace leaves a little on the heap.
        self.base = base_bytes(job, limit)
        self._peaks = {} if peak is None else {(*_settings(job).values(),): peak}

    def trace(self, job: Job, model: tuple[str, ...] = ()) -> Traced:
        """Trace the largest micro-batch of a job, with changes to a copy of the model."""
        module, call = self.job.on_meta
        if model:
            module, call = meta_copy(module, call)
            for key in model:
                MODEL_CHANGES[key](module)
        return trace_batch(job, module, call, worst_batch(job), sharing_of(job))

    def peak(self, job: Job, model: tuple[str, ...] = ()) -> int:
        """Predicted peak memory on the largest micro-batch of a job; each is traced once."""
        key = (*_settings(job).values(), *model)
        if key not in self._peaks:
            self._peaks[key] = peak_of(self.trace(job, model), self.base, self.limit)
        return self._peaks[key]

    def option(self, settings: Mapping[str, Any], peak: int) -> Option:
        """Settings with the peak that they lead to."""
        fits = peak <= self.limit.bytes
        return {"set": dict(settings), "predicted_peak_bytes": peak, "fits": fits}


def advise(job: Job, limit: Limit, max_length: int | None, peak: int | None = None) -> list[Option]:
    """Options for a run that does not fit, those that change the training least first.

    Combinations follow only if no single change fits. `peak` is the predicted peak memory of the
    run as it is.
    """
    trials, found = Trials(job, limit, peak), list[Option]()
    for make in (_single_changes, _combined_changes):
        for changed, model in make(trials):
            then, values = _settings(job), {CHECKPOINTING: True, LORA: LORA_RANK}
            settings = {k: value for k, value in _settings(changed).items() if value != then[k]}
            settings |= {key: values[key] for key in model}
            if settings and settings not in [option["set"] for option in found]:
                found.append(trials.option(settings, trials.peak(changed, model)))
        if make is _single_changes and max_length is not None:
            found += _shorter(trials)
        if any(option["fits"] for option in found):
            break
    return found


def _single_changes(trials: Trials) -> Iterator[Change]:
    """One change each: of the micro-batches, the model, or how processes share it."""
    job, keys = trials.job, _model_changes(trials.job.pipeline.module)
    yield largest_batch(trials, job), ()
    yield from ((job, (key,)) for key in keys if key != LORA)
    yield _divided(job), ()
    yield from _more_processes(trials, ())
    yield from ((job, (key,)) for key in keys if key == LORA)


def _combined_changes(trials: Trials) -> Iterator[Change]:
    """Several changes at once: first those that train the same, then all of them."""
    job, keys = trials.job, _model_changes(trials.job.pipeline.module)
    saving = tuple(key for key in keys if key != LORA)
    smaller = largest_batch(trials, _divided(job))
    yield smaller, ()
    yield smaller, saving
    yield from _more_processes(trials, saving)
    yield job, keys
    yield smaller, keys


def _divided(job: Job) -> Job:
    """The job with its model divided over its processes, where there are several."""
    several = job.batches.num_processes > 1 and can_shard(job.pipeline.module)
    return replace(job, parallel="fsdp") if several else job


def _more_processes(trials: Trials, model: tuple[str, ...]) -> Iterator[Change]:
    """The model divided over the fewest processes that it fits in, by doubling.

    Only where each process has a device of its own. It cannot have less than a row per process; the
    micro-batches stay, or become smaller.
    """
    job, batches = trials.job, trials.job.batches
    if not trials.limit.on_device or batches.max_tokens is not None:
        return
    if not can_shard(job.pipeline.module):
        return
    count = batches.num_processes * 2
    while count <= MOST_PROCESSES:
        rows = max(batches.batch_size * batches.micro_per_step // count, 1)
        size = next(size for size in divisors(rows) if size <= batches.batch_size)
        spread = replace(batches, num_processes=count, batch_size=size, grad_accum=rows // size)
        more = replace(job, batches=spread, parallel="fsdp")
        # Where the shards alone do not fit, nothing needs to be traced.
        if (
            _held_bytes(more) <= trials.limit.bytes
            and trials.peak(more, model) <= trials.limit.bytes
        ):
            yield more, model
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


def largest_batch(trials: Trials, job: Job) -> Job:
    """The job in the largest micro-batches of the same effective batch size that fit, or in rows.

    Micro-batches that are bounded by their tokens stay as they are.
    """
    batches = job.batches
    rows = batches.batch_size * batches.grad_accum
    smaller = [size for size in divisors(rows) if size < batches.batch_size]
    for size in smaller if batches.max_tokens is None else ():
        if trials.peak(job) <= trials.limit.bytes:
            break
        job = replace(job, batches=replace(batches, batch_size=size, grad_accum=rows // size))
    return job


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
    import_peft()
    from peft import LoraConfig

    from surefit.models.lora import insert_adapters

    insert_adapters(module, LoraConfig(r=LORA_RANK, target_modules=_adaptable(module)))


MODEL_CHANGES: dict[str, Callable[[Any], None]] = {
    CHECKPOINTING: enable_checkpointing,
    LORA: _add_lora,
}
