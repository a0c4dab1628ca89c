"""The peak and the time of a run, predicted from the shapes of its largest batches."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.memory.host import give_back
from surefit.memory.limit import CONTEXT_BYTES, PROCESS_BYTES, Limit, held_bytes
from surefit.memory.machine_speed import measure_machine
from surefit.memory.trace_cache import keep_trace, trace_key
from surefit.memory.trace_step import Traced, trace_evaluation, trace_training
from surefit.models.call import Call
from surefit.pipeline.evaluation import row_chunks
from surefit.pipeline.job import Job
from surefit.tasks.task_spec import Batch

if TYPE_CHECKING:
    import torch
    from torch import nn

SMALL_SHARE = 0.01
"""Of the limit: less than that is not worth looking at closely."""
HEAP_TOP_BYTES, TOP_SHARE = 65_000_000, 0.064
HOLES_SHARE, KEPT_SHARE, GRADIENTS_SHARE = 0.106, 0.125, 0.26
"""What glibc's heap holds beyond live tensors, fitted to the runs of bench/fit_grid.py: its end, as
a share of the bytes that pass through it in a step, up to a limit; holes, which an aligned request
of the same size does not fit into again, as shares of these bytes, activations and gradients."""
DEVICE_SHARE = 0.05
"""What the caching allocator of a device holds beyond the tensors."""


@dataclass(frozen=True)
class Fit:
    """What a run holds at most, what it may hold, and how long it takes; None is unknown."""

    limit: Limit
    peak_bytes: int | None = None
    parts: Mapping[str, int] = field(default_factory=dict)
    step_seconds: float | None = None
    total_seconds: float | None = None
    measured_bytes: int | None = None
    advice: tuple[Mapping[str, Any], ...] = ()
    unknown: str = ""
    """Why nothing could be predicted, where that is so."""

    @property
    def fits(self) -> bool | None:
        """Whether the peak, measured if it was, is within the limit."""
        peak = self.measured_bytes if self.measured_bytes is not None else self.peak_bytes
        return None if peak is None else peak <= self.limit.bytes

    def memory_dict(self) -> dict[str, Any]:
        """`memory` of the plan."""
        return {
            "predicted_peak_bytes": self.peak_bytes,
            "limit_bytes": self.limit.bytes,
            "fits": self.fits,
            "limit_source": self.limit.source,
            "measured_peak_bytes": self.measured_bytes,
            "parts": dict(self.parts),
            "advice": [dict(option) for option in self.advice],
        }

    def time_dict(self) -> dict[str, Any]:
        """`time` of the plan."""
        return {
            "predicted_step_seconds": self.step_seconds,
            "predicted_total_seconds": self.total_seconds,
        }


def predict(work: Job, limit: Limit) -> Fit:
    """Trace the largest batches of training and evaluation; unknown where the model refuses."""
    try:
        training = trace_worst(work)
        passes = (training, *_without_gradients(work, training, limit))
    except Exception as error:  # a model's own code may fail on shapes in any way
        first = (str(error).strip().splitlines() or [""])[0]
        return Fit(limit, unknown=f"{type(error).__name__}: {first}"[:200])
    worst = max(passes, key=lambda traced: traced.peak)
    fit = Fit(limit, parts=_split(worst, base_bytes(work.pipeline.module, limit), limit))
    fit = replace(fit, peak_bytes=sum(fit.parts.values()))
    return fit if limit.source == "device_memory_gb" else _with_time(fit, work, training)


def trace_worst(work: Job) -> Traced:
    """A training step on the micro-batch with the most positions."""
    batch = work.pipeline.batch(work.train, work.batches.worst_rows(work.epochs))
    return trace_batch(work, *work.pipeline.on_meta, batch)


def trace_batch(work: Job, module: nn.Module, call: Call, batch: Batch) -> Traced:
    """A training step of a model on meta on one batch."""
    accumulates = work.batches.grad_accum > 1
    key = trace_key(module, call, work.pipeline.loss, batch, accumulates, work.autocast)
    return keep_trace(
        key,
        lambda: trace_training(
            module, call, work.pipeline.loss, batch, accumulates=accumulates, autocast=work.autocast
        ),
    )


def base_bytes(module: nn.Module, limit: Limit) -> int:
    """What is held beside the tensors of the run: the process, or the device's context."""
    if limit.on_device:
        return CONTEXT_BYTES
    give_back()
    loaded = sum(p.nbytes for p in module.parameters() if not p.is_meta)
    return max(held_bytes() - loaded, PROCESS_BYTES)


def peak_of(traced: Traced, base: int, limit: Limit) -> int:
    """All that is held when a traced pass is at its peak."""
    return sum(_split(traced, base, limit).values())


def _split(traced: Traced, base: int, limit: Limit) -> dict[str, int]:
    return {
        "weights": traced.weights,
        "gradients": traced.gradients,
        "optimizer": traced.optimizer,
        "activations": traced.activations,
        "allocator": allocator_bytes(traced, limit),
        "process": base,
    }


def allocator_bytes(traced: Traced, limit: Limit) -> int:
    """What the allocator keeps beyond live tensors: freed pieces that nothing else fits into."""
    if limit.on_device:
        return round(traced.peak * DEVICE_SHARE)
    top = min(round(traced.heap_bytes * TOP_SHARE), HEAP_TOP_BYTES)
    holes = traced.heap_bytes * HOLES_SHARE + traced.activations * KEPT_SHARE
    return top + round(holes + traced.gradients * GRADIENTS_SHARE)


def _without_gradients(work: Job, training: Traced, limit: Limit) -> Iterator[Traced]:
    """Evaluation and generation, where they could hold more than training.

    A pass without gradients holds no more per position than training does. Where that is too
    little to matter, or less than training holds in any case, it is not traced.
    """
    if not len(work.validation):
        return
    size, tokens = work.batches.batch_size, work.batches.max_tokens
    rows = next(row_chunks(work.validation.lengths, size, tokens))
    longest = int(work.validation.lengths[rows].max())
    per_position = training.activations / max(int(work.batches.positions().max()), 1)

    def matters(positions: int) -> bool:
        bound = per_position * positions
        return bound > max(training.activations, SMALL_SHARE * limit.bytes)

    scored = matters(len(rows) * longest)
    asked, new_tokens = work.generates or (0, 0)
    generated = asked > 0 and matters(min(len(rows), asked) * (longest + new_tokens))
    if not scored and not generated:
        return
    batch = work.pipeline.batch(work.validation, rows)
    module, call = work.pipeline.on_meta

    def score(module: nn.Module, batch: Batch) -> None:
        outputs = call(module, batch)
        work.pipeline.loss(outputs, batch)

    if scored:
        yield trace_evaluation(module, score, batch)
    if generated:
        prompt = _longest_prompt(batch, min(len(rows), asked), longest, new_tokens)
        yield trace_evaluation(module, _prefill, prompt)


def _prefill(module: nn.Module, batch: Batch) -> None:
    """All keys and values of an answer at its full length, which is when they take most."""
    names = inspect.signature(module.forward).parameters
    more = {"logits_to_keep": 1} if "logits_to_keep" in names else {}
    given = {name: value for name, value in batch.items() if name in names}
    module(**given, **more, use_cache=True)


def _longest_prompt(batch: Batch, rows: int, length: int, new_tokens: int) -> dict[str, Any]:
    import torch

    def ids(size: int) -> torch.Tensor:
        return torch.zeros(rows, size, dtype=torch.long)

    if "decoder_input_ids" in batch:
        return {"input_ids": ids(length), "decoder_input_ids": ids(new_tokens)}
    return {"input_ids": ids(length + new_tokens)}


def _with_time(fit: Fit, work: Job, training: Traced) -> Fit:
    """What a step takes by the machine's rates, and all of them by their positions."""
    varying, fixed = measure_machine().seconds(training)
    positions = work.batches.positions()
    worst = max(int(positions.max()), 1)
    slope = varying / worst
    return replace(
        fit,
        step_seconds=(varying + fixed) * work.batches.grad_accum,
        total_seconds=total_seconds(work, slope, fixed, slope / 3),
    )


def total_seconds(
    work: Job,
    slope: float,
    fixed: float,
    eval_slope: float,
    step_seconds: float = 0.0,
    token_seconds: float = 0.0,
) -> float:
    """All steps and evaluations of a run, from seconds per position and per micro-batch."""
    positions = work.batches.positions()
    per_epoch = slope * float(positions.sum()) + fixed * len(positions)
    steps = max(work.batches.num_steps(0), 1)
    processes = work.batches.num_processes
    training = work.num_steps / steps * per_epoch / processes + work.num_steps * step_seconds
    lengths = np.asarray(work.validation.lengths, np.int64)
    evaluation = work.num_evaluations * eval_slope * float(lengths.sum()) / processes
    if work.generates is not None and token_seconds:
        rows, new_tokens = work.generates
        chunks = -(-min(rows, len(lengths)) // work.batches.batch_size)
        evaluation += work.num_evaluations * chunks * new_tokens * token_seconds
    return training + evaluation
