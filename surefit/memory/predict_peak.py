"""Peak memory and run time, predicted from the shapes of the largest micro-batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.errors import RunFailedError
from surefit.inputs.store import Store
from surefit.memory.limit import Limit
from surefit.memory.process_memory import counted_bytes, free_memory, is_out_of_memory
from surefit.memory.trace_step import ALONE, Sharing, Traced, trace_training
from surefit.models.call import Call
from surefit.models.quantize import quantization_tensors
from surefit.pipeline.live_batch import StreamWindows
from surefit.pipeline.own_step import OwnStep
from surefit.pipeline.pipeline import Job
from surefit.targets.task_spec import Batch

if TYPE_CHECKING:
    import torch
    from torch import nn

PROCESS_BYTES = 330_000_000
"""Memory of a process after the imports and one step of a tiny model, measured."""
HEAP_BYTES, HEAP_SHARE = 20_000_000, 0.162
"""Holes that remain in malloc's heap, where freed blocks do not fit the next tensor: a constant,
and a share of all bytes that a step allocates. Fitted to the first grid of bench/fit_grid.py."""
GLOO_COPIES = 2
"""Copies of gathered weights that gloo makes on the host, to send and to receive them."""
MEASURED_ROWS = 16
"""Rows that are augmented to measure the time it takes."""
DEVICE_CACHE_SHARE = 0.05
"""Memory that the caching allocator of a device reserves beyond live tensors."""
OP_SECONDS = 12e-6
"""Overhead of Python and torch per operation."""
READS_PER_WRITE = 2
"""Bytes read per byte written, on average."""
HOST_SIZES, DEVICE_SIZES = (512, 1 << 22), (4096, 1 << 24)
"""Rows of the matrix, and numbers of the copy, that are timed. An accelerator needs large ones:
small ones take as long as it takes to start them, or fit into its cache."""


@dataclass(frozen=True)
class Fit:
    """Peak memory, memory limit and time of a run; None where a value is unknown."""

    limit: Limit
    peak_bytes: int | None = None
    parts: Mapping[str, int] = field(default_factory=dict)
    step_seconds: float | None = None
    total_seconds: float | None = None
    measured_bytes: int | None = None
    advice: tuple[Mapping[str, Any], ...] = ()
    unknown: str = ""
    """Why the peak could not be predicted; empty if it was."""

    @property
    def fits(self) -> bool | None:
        """Whether the measured peak, or else the predicted one, is within the limit."""
        peak = self.measured_bytes if self.measured_bytes is not None else self.peak_bytes
        return None if peak is None else peak <= self.limit.bytes

    def memory_dict(self) -> dict[str, Any]:
        """Return the section `memory` of the plan."""
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
        """Return the section `time` of the plan."""
        return {
            "predicted_step_seconds": self.step_seconds,
            "predicted_total_seconds": self.total_seconds,
        }


def predict(job: Job, limit: Limit, traced: Traced | None = None) -> Fit:
    """Predict from the largest micro-batch of training, which is traced unless it has been.

    A pass without gradients needs no more memory per position; the rehearsal evaluates the longest
    rows. The result is unknown if the model's code cannot run on the meta device.
    """
    if isinstance(job.pipeline.loss, OwnStep):
        return Fit(limit, unknown="a training_step is measured before step 1, not traced.")
    try:
        training = traced or trace_worst(job)
    except Exception as error:  # the model's own code may fail on the meta device in any way
        return Fit(limit, unknown=describe_untraced(error))
    parts = _breakdown(training, base_bytes(job, limit), limit)
    beside = {"metrics": job.kept_bytes, "augmentation": augmented_bytes(job)}
    beside["stream"] = window_bytes(job)
    held = {name: size for name, size in beside.items() if size and not limit.on_device}
    fit = Fit(limit, parts={**parts, **held})
    fit = replace(fit, peak_bytes=sum(fit.parts.values()))
    return fit if limit.is_planned_device else _with_time(fit, job, training)


def describe_untraced(error: Exception) -> str:
    """Return in plain words why a model's step could not be traced; the error itself is logged."""
    logging.getLogger(__name__).debug("The step could not be traced.", exc_info=error)
    return (
        "the model's code computes with values, and a prediction has their shapes only. Training "
        "measures the largest micro-batch before step 1, and so does check with --set fit=measured."
    )


def trace_worst(job: Job) -> Traced:
    """Trace the largest micro-batch of training; raises what the model's code raises."""
    if isinstance(job.pipeline.loss, OwnStep):
        raise RunFailedError("A training_step is not traced.")
    return trace_batch(job, *job.on_meta, worst_batch(job), sharing_of(job))


def sharing_of(job: Job) -> Sharing:
    """Return how the processes of a job share its model."""
    count = job.batches.num_processes
    return Sharing(count, job.parallel, job.gathers_whole, job.optimizer.keeps)


def worst_batch(job: Job) -> Batch:
    """Return micro-batch with the most positions; on the CPU, because traces read its integers."""
    rows = job.batches.worst_rows(job.epochs)
    batch = job.batch(rows, device="cpu")
    if job.pipeline.layout.body_only:  # the head is padded to the longest row, which may be another
        return _widened(batch, int(job.batches.lengths.max()))
    return batch


def _widened(batch: Batch, length: int) -> Batch:
    """Return a batch whose body runs without padding, with more padding for its head."""
    import torch

    rows, old = batch["attention_mask"].shape
    if old >= length:
        return batch
    places = torch.arange(length).clamp(max=old - 1)
    wider = {
        name: value[:, places]
        if isinstance(value, torch.Tensor) and value.shape[:2] == (rows, old)
        else value
        for name, value in batch.items()
    }
    wider["attention_mask"][:, old:] = 0
    kept = batch["kept_positions"]
    return {**wider, "kept_positions": kept // old * length + kept % old}


def augmented_bytes(job: Job) -> int:
    """Memory of augmented rows besides their batch; without augmentation they stay on disk."""
    if job.augment is None:
        return 0
    batch = worst_batch(job)
    return sum(int(batch[kind.column].nbytes) for kind in (job.augment.kind, *job.augment.further))


def window_bytes(job: Job) -> int:
    """Memory of the rows of a stream: a window, and the next one while it is read."""
    if not isinstance(job.pipeline.live, StreamWindows) or job.epochs == 1:
        return 0  # the first window stays on disk
    return 2 * stored_bytes(job.train)


def stored_bytes(store: Store) -> int:
    """Bytes of all columns of a Store."""
    return sum(int(store.values(name).nbytes) for name in store.fields)


def augment_seconds(job: Job) -> float:
    """Time that the augmentation of one row takes, measured on a micro-batch."""
    if job.augment is None:
        return 0.0
    rows = job.batches.epoch(0).rows[:MEASURED_ROWS]
    taken = float("inf")
    for _ in range(2):  # the first one also loads what it needs
        began = time.perf_counter()
        job.augment.in_epoch(0).rows(rows)
        taken = min(taken, time.perf_counter() - began)
    return taken / max(len(rows), 1)


def trace_batch(
    job: Job, module: nn.Module, call: Call, batch: Batch, sharing: Sharing = ALONE
) -> Traced:
    """Trace a training step of a model on the meta device."""
    return trace_training(
        module,
        call,
        job.pipeline.loss,
        batch,
        accumulates=job.batches.grad_accum > 1,
        dtype=job.autocast_dtype,
        sharing=sharing,
    )


def base_bytes(job: Job, limit: Limit) -> int:
    """Memory in use apart from the tensors of the run: the process, or the device context."""
    if limit.on_device:
        return limit.used_bytes
    free_memory()
    module = job.pipeline.module
    held = [*module.parameters(), *quantization_tensors(module)]
    # What is in a mapped file is not counted yet; the run counts what training writes or casts.
    loaded = counted_bytes((each.data_ptr(), each.nbytes) for each in held if not each.is_meta)
    return max(limit.used_bytes - loaded, PROCESS_BYTES)


def peak_of(traced: Traced, base: int, limit: Limit) -> int:
    """Peak memory of a traced pass, with the allocator and the process."""
    return sum(_breakdown(traced, base, limit).values())


def _breakdown(traced: Traced, base: int, limit: Limit) -> dict[str, int]:
    """Peak memory by what uses it, as the plan shows it."""
    return {
        "weights": traced.weights,
        "gradients": traced.gradients,
        "optimizer": traced.optimizer,
        **({"gathers": traced.gathers} if traced.gathers else {}),
        "activations": traced.activations,
        "allocator": allocator_bytes(traced, limit),
        "process": base,
    }


def allocator_bytes(traced: Traced, limit: Limit) -> int:
    """Memory of the allocator beyond live tensors: its cache, or the holes in malloc's heap."""
    if limit.on_device:
        return round(traced.peak * DEVICE_CACHE_SHARE)
    copied = GLOO_COPIES * traced.gathers
    return HEAP_BYTES + round(traced.heap_bytes * HEAP_SHARE) + copied


@dataclass(frozen=True)
class Machine:
    """Measured throughput."""

    flops_per_second: float
    bytes_per_second: float

    def seconds(self, traced: Traced) -> tuple[float, float]:
        """Time of a step that grows with its positions, and time that does not."""
        moved = traced.moved_bytes * (1 + READS_PER_WRITE)
        work = traced.flops / self.flops_per_second + moved / self.bytes_per_second
        return work, traced.num_ops * OP_SECONDS


def device_seconds() -> float:
    """Read a clock once the device has finished: it goes on working after a call has returned."""
    import torch

    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


@lru_cache
def measure_machine(lower: torch.dtype | None = None) -> Machine:
    """Time a matrix product and a copy, a few milliseconds each, on the device of the runs.

    `lower` is the precision that a run computes products in, if not float32; an accelerator is
    several times faster in it. On a CPU, products are timed in float32.
    """
    import torch

    device, dtype, (size, count) = torch.device("cpu"), torch.float32, HOST_SIZES
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is not None:
        device, dtype, (size, count) = found, lower or dtype, DEVICE_SIZES
    matrix = torch.ones(size, size, device=device, dtype=dtype)
    values = torch.ones(count, device=device)
    return Machine(
        2 * size**3 / _shortest(lambda: matrix @ matrix),
        2 * count * torch.float32.itemsize / _shortest(lambda: values + 1),
    )


def _shortest(work: Callable[[], Any]) -> float:
    def timed() -> float:
        began = device_seconds()
        work()
        return device_seconds() - began

    return max(min(timed() for _ in range(4)), 1e-9)


def _with_time(fit: Fit, job: Job, training: Traced) -> Fit:
    """Time of a step from the speed of this machine, and of the run from its positions."""
    try:
        machine = measure_machine(job.autocast_dtype)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return fit  # the device is full, so that nothing can be timed on it
    varying, fixed = machine.seconds(training)
    positions = job.batches.positions()
    worst = max(int(positions.max()), 1)
    slope = varying / worst
    return replace(
        fit,
        step_seconds=(varying + fixed) * job.batches.grad_accum,
        total_seconds=total_seconds(job, slope, fixed, slope / 3),
    )


def total_seconds(
    job: Job,
    slope: float,
    fixed: float,
    eval_slope: float,
    step_seconds: float = 0.0,
    token_seconds: float = 0.0,
) -> float:
    """Time of all steps and evaluations, from seconds per position and per micro-batch."""
    batches = job.batches
    per_epoch = slope * batches.total_positions() + fixed * batches.num_micro_batches()
    steps = max(job.batches.steps_per_epoch, 1)
    processes = job.batches.num_processes
    per_epoch += augment_seconds(job) * batches.num_rows
    training = job.num_steps / steps * per_epoch / processes + job.num_steps * step_seconds
    if job.pipeline.live is not None:
        read_rows = job.num_steps / steps * batches.num_rows / processes
        training += read_rows * job.pipeline.live.row_seconds
    lengths = job.validation.lengths
    sets = [store.lengths for store in job.named.values()] or [lengths]
    positions = sum(float(each.sum(dtype=np.int64)) for each in sets)
    evaluation = job.num_evaluations * eval_slope * positions / processes
    if job.generates is not None and token_seconds:
        rows, new_tokens = job.generates
        chunks = -(-min(rows, len(lengths)) // job.batches.batch_size)
        evaluation += job.num_evaluations * chunks * new_tokens * token_seconds
    return training + evaluation
