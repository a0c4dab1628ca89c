"""Options for a run that does not fit: config changes, each with its predicted peak memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.memory.held_memory import ADAM_STATES
from surefit.memory.limit import Limit
from surefit.memory.predict_peak import (
    base_bytes,
    peak_of,
    sharing_of,
    trace_batch,
    worst_batch,
)
from surefit.models.gradient_checkpointing import enable_checkpointing, supports_checkpointing
from surefit.models.meta_copy import meta_copy
from surefit.models.shard_module import can_be_divided
from surefit.pipeline.job import Job
from surefit.tasks.task_spec import Batch

if TYPE_CHECKING:
    from torch import nn

CHECKPOINTING = "checkpointing"
LORA_RANK = 16
MOST_PROCESSES = 1024
"""The largest number of processes that is tried."""
MIN_LENGTH = 32
Saving = Callable[[Any], None]
"""Enables gradient checkpointing in a model."""
EXTRAPOLATION_MARGIN = 1.3
"""Sizes up to this factor above the extrapolated one are traced: peaks are not quite linear."""


@dataclass(frozen=True)
class Option:
    """Config keys to change, and the predicted peak memory with them."""

    settings: Mapping[str, Any]
    peak_bytes: int
    fits: bool

    def __post_init__(self) -> None:
        assert self.settings, "an option changes at least one setting"

    def as_dict(self) -> dict[str, Any]:
        """The option as the plan shows it."""
        return {
            "set": dict(self.settings),
            "predicted_peak_bytes": self.peak_bytes,
            "fits": self.fits,
        }


@dataclass(frozen=True)
class Change:
    """Values for config keys, and how to predict the peak memory with them."""

    settings: Mapping[str, Any]
    predict_peak: Callable[[], int]


class Trials:
    """Predicts the peak memory of changed runs, by tracing changed copies of the model."""

    def __init__(self, job: Job, limit: Limit) -> None:
        self.job, self.limit = job, limit
        # Measured once, because each trace leaves a little on the heap.
        self.base = base_bytes(job, limit)

    def peak(
        self,
        batch: Batch,
        job: Job | None = None,
        change: Callable[[Any], None] | None = None,
    ) -> int:
        """Predicted peak memory on a batch, with a change applied to a copy of the model."""
        module, call = self.job.on_meta
        if change is not None:
            module, call = meta_copy(module, call)
            change(module)
        job = job or self.job
        traced = trace_batch(job, module, call, batch, sharing_of(job, self.limit))
        return peak_of(traced, self.base, self.limit)

    def worst_peak(self, job: Job, change: Callable[[Any], None] | None = None) -> int:
        """Predicted peak memory on the largest micro-batch of a changed job."""
        return self.peak(worst_batch(job), job, change)


def with_batch_size(job: Job, size: int) -> Job:
    """The same effective batch size, in micro-batches of `size` rows."""
    batches = job.batches
    effective = batches.batch_size * batches.grad_accum
    smaller = replace(batches, batch_size=size, grad_accum=effective // size)
    return replace(job, batches=smaller)


def with_processes(job: Job, count: int) -> Job:
    """The job divided over so many processes, at the same effective batch size where it can be.

    It cannot be smaller than a row per process; the micro-batches stay, or become smaller.
    """
    batches = job.batches
    rows = max(batches.batch_size * batches.micro_per_step // count, 1)
    size = next(size for size in divisors(rows) if size <= batches.batch_size)
    spread = replace(batches, num_processes=count, batch_size=size, grad_accum=rows // size)
    return replace(job, batches=spread, parallel="fsdp")


def divisors(number: int) -> list[int]:
    """All divisors, the largest first.

    >>> divisors(12)
    [12, 6, 4, 3, 2, 1]
    """
    return [size for size in range(number, 0, -1) if number % size == 0]


def largest_batch(trials: Trials, current_peak: int | None = None) -> tuple[Job, int]:
    """The largest micro-batch of the same effective batch size that fits, and its peak memory.

    If none fits, it is one row. Peak memory is nearly linear in the rows, so sizes far above the
    extrapolated one are not traced. `current_peak` is the peak at the current size, if known.
    """
    job, limit = trials.job, trials.limit.bytes
    current = job.batches.batch_size
    if current_peak is None:
        current_peak = trials.peak(worst_batch(job), job)
    if current_peak <= limit:
        return job, current_peak
    least = with_batch_size(job, 1)
    least_peak = trials.peak(worst_batch(least), least)
    per_row = max(current_peak - least_peak, 1) / max(current - 1, 1)
    most_rows = 1 + EXTRAPOLATION_MARGIN * (limit - least_peak) / per_row
    for size in divisors(current * job.batches.grad_accum):
        if 1 < size < current and size <= most_rows:
            smaller = with_batch_size(job, size)
            peak = trials.peak(worst_batch(smaller), smaller)
            if peak <= limit:
                return smaller, peak
    return least, least_peak


def advise(
    job: Job, limit: Limit, max_length: int | None, peak: int | None = None
) -> Iterator[Option]:
    """Options for a run that does not fit, those that change the training least first.

    Combinations follow only if no single change fits. `peak` is the predicted peak memory of the
    run as it is.
    """
    trials = Trials(job, limit)
    model_changes = _model_changes(job.pipeline.module)
    smaller, smaller_peak = job, peak
    if job.batches.max_tokens is None and job.batches.batch_size > 1:
        smaller, smaller_peak = largest_batch(trials, peak)

    batch = worst_batch(job)
    singles = {
        key: Change({key: value}, partial(trials.peak, batch, change=change))
        for (key, value), change in model_changes.items()
    }

    def same_training() -> Iterator[Change]:
        if smaller is not job and smaller_peak is not None:
            yield Change(_sizes(smaller), partial(int, smaller_peak))
        yield from (change for key, change in singles.items() if key == CHECKPOINTING)

    def other_training() -> Iterator[Change]:
        yield from (change for key, change in singles.items() if key != CHECKPOINTING)
        for length, shorter_peak in _shorter(trials, batch, max_length):
            yield Change({"max_seq_length": length}, partial(int, shorter_peak))

    def combined(job: Job) -> Iterator[Change]:
        yield Change(
            {**_shared(job), **_sizes(job), **dict(model_changes.keys())},
            lambda: trials.worst_peak(job, lambda module: _apply(model_changes.values(), module)),
        )

    saving = model_changes.get((CHECKPOINTING, True))
    more = [more_processes(trials, change) for change in dict.fromkeys((None, saving))]
    rounds: list[Iterable[Change]] = [chain(same_training(), other_training(), *more[:1])]
    rounds += [*more[1:], combined(job), combined(smaller)]
    if job.batches.num_processes > 1:
        divided = divided_changes(trials, saving)
        rounds = [chain(same_training(), islice(divided, 1)), divided, *more, other_training()]
        last = replace(smaller, parallel="fsdp") if can_be_divided(job.pipeline.module) else smaller
        rounds += [combined(job), combined(last)]
    current = {**_sizes(job), **_shared(job), "max_seq_length": max_length}
    yield from try_changes(rounds, current, limit.bytes)


def divided_changes(trials: Trials, saving: Saving | None) -> Iterator[Change]:
    """The model divided over the processes: as it is, in smaller micro-batches, with checkpointing.

    `saving` enables gradient checkpointing; None where the model does not support it.
    """
    if not can_be_divided(trials.job.pipeline.module):
        return
    divided = replace(trials.job, parallel="fsdp")
    yield Change(_shared(divided), partial(trials.worst_peak, divided))
    smaller = divided
    if divided.batches.max_tokens is None and divided.batches.batch_size > 1:
        smaller, peak = largest_batch(Trials(divided, trials.limit))
        yield Change({**_shared(smaller), **_sizes(smaller)}, partial(int, peak))
    if saving is not None:
        for job in (divided, smaller):
            settings = {**_shared(job), **_sizes(job), CHECKPOINTING: True}
            yield Change(settings, partial(trials.worst_peak, job, saving))


def more_processes(trials: Trials, saving: Saving | None) -> Iterator[Change]:
    """The model divided over more processes, where each has a device of its own."""
    if not trials.limit.on_device or trials.job.batches.max_tokens is not None:
        return
    if not can_be_divided(trials.job.pipeline.module):
        return
    found = fewest_processes(trials, saving)
    if found is not None:
        job, peak = found
        also = {CHECKPOINTING: True} if saving is not None else {}
        yield Change({**_shared(job), **_sizes(job), **also}, partial(int, peak))


def whole_model_peak(job: Job, limit: Limit) -> int | None:
    """Peak memory of a process that holds the whole model; None if that alone does not fit."""
    if _held_bytes(job) > limit.bytes:
        return None
    return Trials(job, limit).worst_peak(replace(job, parallel="ddp"))


def _held_bytes(job: Job) -> int:
    """Bytes of whole weights, gradients and optimizer state."""
    weights = [*job.pipeline.module.parameters()]
    trained = sum(weight.nbytes for weight in weights if weight.requires_grad)
    return sum(weight.nbytes for weight in weights) + (1 + ADAM_STATES) * trained


def fewest_processes(trials: Trials, saving: Saving | None = None) -> tuple[Job, int] | None:
    """The fewest processes that a divided model fits in, by doubling, and the peak of each."""
    job, limit, held = trials.job, trials.limit.bytes, _held_bytes(trials.job)
    count = job.batches.num_processes * 2
    if trials.worst_peak(with_processes(job, MOST_PROCESSES), saving) > limit:
        return None
    while count <= MOST_PROCESSES:
        spread = with_processes(job, count)
        # Where the shards alone do not fit, nothing needs to be traced.
        if held / count <= limit and (peak := trials.worst_peak(spread, saving)) <= limit:
            return spread, peak
        count *= 2
    return None


def try_changes(
    rounds: Iterable[Iterable[Change]], current: Mapping[str, Any], limit_bytes: int
) -> Iterator[Option]:
    """Distinct options that each differ from the current settings.

    Rounds end after the first one with an option that fits. A change that repeats an earlier one,
    or the current settings, is not predicted.

    >>> changes = [Change({"batch_size": size}, lambda: 7) for size in (4, 2, 2)]
    >>> [dict(option.settings) for option in try_changes([changes], {"batch_size": 4}, 9)]
    [{'batch_size': 2}]
    """
    seen: list[Mapping[str, Any]] = [{}]
    for changes in rounds:
        any_fits = False
        for change in changes:
            settings = {
                key: value
                for key, value in change.settings.items()
                if key not in current or current[key] != value
            }
            if settings in seen:
                continue
            seen.append(settings)
            peak = change.predict_peak()
            yield Option(settings, peak, peak <= limit_bytes)
            any_fits |= peak <= limit_bytes
        if any_fits:
            return


def _shared(job: Job) -> dict[str, Any]:
    """How many processes share the model, and how."""
    return {"processes": job.batches.num_processes, "parallel": job.parallel}


def _sizes(job: Job) -> dict[str, int]:
    """The config keys of the micro-batches."""
    return {"batch_size": job.batches.batch_size, "grad_accum": job.batches.grad_accum}


def _model_changes(module: nn.Module) -> dict[tuple[str, Any], Callable[[Any], None]]:
    """Changes to the model that save memory, by config key and value."""
    changes: dict[tuple[str, Any], Callable[[Any], None]] = {}
    if supports_checkpointing(module):
        changes[CHECKPOINTING, True] = enable_checkpointing
    if _can_adapt(module):
        changes["lora.r", LORA_RANK] = add_lora
    return changes


def _apply(changes: Iterable[Callable[[Any], None]], module: nn.Module) -> None:
    for change in changes:
        change(module)


def _shorter(trials: Trials, batch: Batch, max_length: int | None) -> Iterator[tuple[int, int]]:
    """The longest of 1/2, 1/4, … of the sequence length that fits, with its peak memory."""
    if max_length is None or "input_ids" not in batch:
        return
    job = trials.job
    rows = job.batches.worst_rows(job.epochs)
    length = int(job.batches.lengths[rows].max())
    while length // 2 >= MIN_LENGTH:
        length //= 2
        if job.batches.padding_free:  # as many whole rows as have these positions
            lengths = job.batches.lengths[rows].astype(np.int64)
            wanted = np.minimum(lengths, length).sum()
            chosen = rows[: np.searchsorted(lengths.cumsum(), wanted) + 1]
            shorter = job.pipeline.batch(job.train, chosen, device="cpu")
        else:
            shorter = {name: _truncate(value, length) for name, value in batch.items()}
        peak = trials.peak(shorter)
        if peak <= trials.limit.bytes:
            yield length, peak
            return


def _truncate(value: Any, length: int) -> Any:
    return value[:, :length] if getattr(value, "ndim", 0) > 1 else value


def _can_adapt(module: nn.Module) -> bool:
    """Whether LoRA is an option: a transformers model whose weights are all trained."""
    trained = all(weight.requires_grad for weight in module.parameters())
    return trained and hasattr(module, "config") and bool(_adaptable(module))


def _adaptable(module: Any) -> list[nn.Module]:
    """The linear layers that get LoRA: all but the output embeddings."""
    from torch import nn

    last = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
    return [m for m in module.modules() if isinstance(m, nn.Linear) and m is not last]


def add_lora(module: nn.Module) -> None:
    """Add LoRA to every linear layer of a model on the meta device, as peft does.

    It spares the import of peft, which takes seconds.
    """
    import torch
    from torch.nn import functional

    for weight in module.parameters():
        weight.requires_grad_(False)

    def adapt(layer: Any) -> None:
        down = torch.nn.Parameter(torch.empty(LORA_RANK, layer.in_features, device="meta"))
        up = torch.nn.Parameter(torch.empty(layer.out_features, LORA_RANK, device="meta"))
        layer.register_parameter("lora_down", down)
        layer.register_parameter("lora_up", up)
        layer.register_forward_hook(
            lambda _, inputs, output: (
                output + functional.linear(functional.linear(inputs[0], down), up) * 2.0
            )
        )

    for layer in _adaptable(module):
        adapt(layer)
