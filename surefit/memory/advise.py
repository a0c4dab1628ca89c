"""What would fit instead: changes to a run, each with the peak it would have, the mildest first."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.memory.limit import Limit
from surefit.memory.predict_peak import base_bytes, peak_of, trace_batch
from surefit.models.gradient_checkpointing import enable_checkpointing, supports_checkpointing
from surefit.pipeline.job import Job
from surefit.tasks.task_spec import Batch

if TYPE_CHECKING:
    from torch import nn

LORA_RANK = 16
SHORTEST = 32
HOPE = 1.3
"""How far beyond the rows that should fit a batch size is tried all the same."""


@dataclass(frozen=True)
class Option:
    """Config keys to set, and the predicted peak with them."""

    settings: Mapping[str, Any]
    peak_bytes: int
    fits: bool

    def as_dict(self) -> dict[str, Any]:
        """The option as the plan shows it."""
        return {
            "set": dict(self.settings),
            "predicted_peak_bytes": self.peak_bytes,
            "fits": self.fits,
        }


class Trials:
    """A model on meta that is changed and traced again, and what came of it."""

    def __init__(self, work: Job, limit: Limit) -> None:
        self.work, self.limit = work, limit
        self.base = base_bytes(
            work.pipeline.module, limit
        )  # once: tracing itself leaves a little behind

    def peak(
        self,
        batch: Batch,
        work: Job | None = None,
        change: Callable[[Any], None] | None = None,
    ) -> int:
        """The predicted peak on a batch, with a change to a copy of the model."""
        module, call = (
            self.work.pipeline.on_meta
            if change is None
            else copy.deepcopy(self.work.pipeline.on_meta)
        )
        if change is not None:
            change(module)
        traced = trace_batch(work or self.work, module, call, batch)
        return peak_of(traced, self.base, self.limit)

    def option(self, settings: Mapping[str, Any], peak: int) -> Option:
        """An option, held against the limit."""
        return Option(settings, peak, peak <= self.limit.bytes)


def with_batch_size(work: Job, size: int) -> Job:
    """The same effective batch in micro-batches of `size` rows."""
    batches = work.batches
    effective = batches.batch_size * batches.grad_accum
    smaller = replace(batches, batch_size=size, grad_accum=effective // size)
    return replace(work, batches=smaller)


def divisors(number: int) -> list[int]:
    """All divisors, the largest first.

    >>> divisors(12)
    [12, 6, 4, 3, 2, 1]
    """
    return [size for size in range(number, 0, -1) if number % size == 0]


def largest_batch(trials: Trials, whole_peak: int | None = None) -> tuple[Job, int]:
    """The largest micro-batch of the same effective batch that fits, else one row; its peak.

    Peaks grow about evenly with the rows, so sizes far beyond what would fit are not traced.
    `whole_peak` is that of the batch size as it is, if it is known.
    """
    work, limit = trials.work, trials.limit.bytes
    whole = work.batches.batch_size
    if whole_peak is None:
        whole_peak = trials.peak(_worst(work), work)
    if whole_peak <= limit:
        return work, whole_peak
    least = with_batch_size(work, 1)
    least_peak = trials.peak(_worst(least), least)
    per_row = max(whole_peak - least_peak, 1) / max(whole - 1, 1)
    promising = 1 + HOPE * (limit - least_peak) / per_row
    for size in divisors(whole * work.batches.grad_accum):
        if 1 < size < whole and size <= promising:
            smaller = with_batch_size(work, size)
            peak = trials.peak(_worst(smaller), smaller)
            if peak <= limit:
                return smaller, peak
    return least, least_peak


def advise(
    work: Job, limit: Limit, max_length: int | None, peak: int | None = None
) -> Iterator[Option]:
    """What changes the result least comes first; combinations where no single change fits.

    `peak` is what the run is predicted to hold as it is.
    """
    trials = Trials(work, limit)
    batch = _worst(work)
    changes = _changes(work.pipeline.module)
    smaller, settings = work, {}
    singles = []
    if work.batches.max_tokens is None and work.batches.batch_size > 1:
        smaller, peak = largest_batch(trials, peak)
        sizes = smaller.batches
        settings = {"batch_size": sizes.batch_size, "grad_accum": sizes.grad_accum}
        singles.append(trials.option(settings, peak))
    singles += [
        trials.option({key: value}, trials.peak(batch, change=change))
        for (key, value), change in changes.items()
    ]
    singles += [
        trials.option({"max_seq_length": length}, peak)
        for length, peak in _shorter(trials, batch, max_length)
    ]
    yield from singles
    if any(option.fits for option in singles):
        return
    for tried, start in ((work, {}), (smaller, settings)):
        together = trials.option(
            {**start, **dict(changes.keys())},
            trials.peak(_worst(tried), tried, lambda module: _apply(changes.values(), module)),
        )
        yield together
        if together.fits:
            return


def _changes(module: nn.Module) -> dict[tuple[str, Any], Callable[[Any], None]]:
    """What can be changed about the model, by the config key and its value."""
    changes: dict[tuple[str, Any], Callable[[Any], None]] = {}
    if supports_checkpointing(module):
        changes["checkpointing", True] = enable_checkpointing
    if _can_adapt(module):
        changes["lora.r", LORA_RANK] = add_lora
    return changes


def _apply(changes: Iterable[Callable[[Any], None]], module: nn.Module) -> None:
    for change in changes:
        change(module)


def _worst(work: Job) -> Batch:
    return work.pipeline.batch(work.train, work.batches.worst_rows(work.epochs))


def _shorter(trials: Trials, batch: Batch, max_length: int | None) -> Iterator[tuple[int, int]]:
    """The longest of a half, a quarter, … of the rows' length that fits; none if none does."""
    if max_length is None or "input_ids" not in batch:
        return
    work = trials.work
    rows = work.batches.worst_rows(work.epochs)
    length = int(work.batches.lengths[rows].max())
    while length // 2 >= SHORTEST:
        length //= 2
        if work.batches.padding_free:  # as many whole rows as have the positions of the cut ones
            lengths = work.batches.lengths[rows].astype(np.int64)
            wanted = np.minimum(lengths, length).sum()
            shorter = work.pipeline.batch(
                work.train, rows[: np.searchsorted(lengths.cumsum(), wanted) + 1]
            )
        else:
            shorter = {name: _cut(value, length) for name, value in batch.items()}
        peak = trials.peak(shorter)
        if peak <= trials.limit.bytes:
            yield length, peak
            return


def _cut(value: Any, length: int) -> Any:
    return value[:, :length] if getattr(value, "ndim", 0) > 1 else value


def _can_adapt(module: nn.Module) -> bool:
    """Whether LoRA could be used: a model of transformers that is trained whole."""
    trained = all(weight.requires_grad for weight in module.parameters())
    return trained and hasattr(module, "config") and bool(_adaptable(module))


def _adaptable(module: Any) -> list[nn.Module]:
    from torch import nn

    last = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
    return [m for m in module.modules() if isinstance(m, nn.Linear) and m is not last]


def add_lora(module: nn.Module) -> None:
    """Adapters on every linear layer of a model on meta, as peft adds them, without its import."""
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
