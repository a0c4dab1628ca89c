"""One real step on the largest batch, before the first: memory runs out now, or never.

The step has a rate of 0 and leaves no trace: weights, buffers, random states and optimizer are
afterwards what they were, to the bit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.memory.limit import forget_peak, peak_held_bytes
from surefit.memory.predict_peak import total_seconds
from surefit.pipeline.job import Job

if TYPE_CHECKING:
    from torch import nn

WARM_SECONDS = 0.25
"""Passes are repeated for so long, at most MOST_PASSES times: the first one is slower."""
MOST_PASSES = 3
_WORDS = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory")


class NotEnoughMemoryError(Exception):
    """The real step ran out of memory."""


@dataclass(frozen=True)
class Proof:
    """What a real step on the largest batch held and took, and the run after it will take."""

    peak_bytes: int
    step_seconds: float
    total_seconds: float


def prove(
    work: Job,
    model: Any,
    backward: Callable[[Any], None],
    optimizer: Any,
    *,
    fresh: bool,
) -> Proof:
    """Go through the largest and a usual batch; raises NotEnoughMemoryError.

    `fresh` says that the optimizer is ours and has no state yet: it is made for the step, so that
    all is there that later steps will find, and cleared afterwards.
    """
    worst = work.pipeline.batch(work.train, work.batches.worst_rows(work.epochs))
    usual_rows = usual(work)
    usual_batch = work.pipeline.batch(work.train, usual_rows)
    _forget_peak()
    try:
        with _untouched(work.pipeline.module, optimizer, fresh):
            update_seconds = _make_state(work.pipeline.module, optimizer) if fresh else 0.0
            forward, whole = _time(work, model, worst, backward)
            _, usual_whole = _time(work, model, usual_batch, backward)
            token_seconds = _decode_seconds(work, worst) if work.generates else 0.0
    except MemoryError as error:
        raise NotEnoughMemoryError(str(error)) from error
    except RuntimeError as error:  # torch.OutOfMemoryError is one of them
        if not any(words in str(error).lower() for words in _WORDS):
            raise
        raise NotEnoughMemoryError(str(error)) from error
    most = int(work.batches.positions().max())
    fewer = int(np.median(work.batches.positions()))
    slope, fixed = _line(fewer, usual_whole, most, whole)
    total = total_seconds(work, slope, fixed, forward / most, update_seconds, token_seconds)
    return Proof(_peak(), whole * work.batches.grad_accum + update_seconds, total)


def usual(work: Job) -> Any:
    """The rows of a micro-batch of middling size."""
    batches = work.batches
    positions = batches.positions()
    middle = int(np.argsort(positions, kind="stable")[len(positions) // 2])
    order = batches.epoch(0)
    return order.rows[order.micro_starts[middle] : order.micro_starts[middle + 1]]


def _line(fewer: int, less: float, most: int, more: float) -> tuple[float, float]:
    """Seconds per position and per micro-batch, from two of them.

    >>> _line(10, 2.0, 30, 4.0)
    (0.1, 1.0)
    >>> _line(30, 4.0, 30, 4.0)
    (0.13333333333333333, 0.0)
    """
    if most <= fewer or more <= less:
        return more / max(most, 1), 0.0
    slope = (more - less) / (most - fewer)
    fixed = less - slope * fewer
    return (slope, fixed) if fixed >= 0 else (more / most, 0.0)


def _time(
    work: Job, model: Any, batch: Any, backward: Callable[[Any], None]
) -> tuple[float, float]:
    """The shortest forward and the shortest forward and backward, after a first pass."""
    began, forward, whole = time.perf_counter(), float("inf"), float("inf")
    for _ in range(MOST_PASSES):
        if work.batches.grad_accum == 1:
            _drop_gradients(work.pipeline.module)
        start = time.perf_counter()
        total, count = work.pipeline.loss(work.pipeline.call(model, batch), batch)
        middle = time.perf_counter()
        backward(total / max(int(count), 1))
        del total
        _wait()
        end = time.perf_counter()
        forward, whole = min(forward, middle - start), min(whole, end - start)
        if end - began > WARM_SECONDS:
            break
    _drop_gradients(work.pipeline.module)
    return forward, whole


def _decode_seconds(work: Job, batch: Any) -> float:
    """What one token more of an answer takes, which is when the model is called anew."""
    import torch

    module: Any = work.pipeline.module
    module.eval()
    best = float("inf")
    ids = batch["input_ids"].reshape(-1, 1)[: work.batches.batch_size]
    given = {"input_ids": ids}
    if "decoder_input_ids" in batch:
        given["decoder_input_ids"] = ids
    with torch.no_grad():
        for _ in range(MOST_PASSES):
            began = time.perf_counter()
            module(**given)
            _wait()
            best = min(best, time.perf_counter() - began)
    module.train()
    return best


def _make_state(module: nn.Module, optimizer: Any) -> float:
    """Let the optimizer make its state, from gradients of 0 at a rate of 0: nothing moves."""
    import torch

    for weight in module.parameters():
        if weight.requires_grad:
            weight.grad = torch.zeros_like(weight)
    rates = [group["lr"] for group in optimizer.param_groups]
    began = 0.0
    try:
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        optimizer.step()
        began = time.perf_counter()
        optimizer.step()
        _wait()
        return time.perf_counter() - began
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        _drop_gradients(module)


@contextmanager
def _untouched(module: nn.Module, optimizer: Any, fresh: bool) -> Iterator[None]:
    import torch

    training = module.training
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    states = random.getstate(), np.random.get_state()
    module.train()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        _drop_gradients(module)
        if fresh:
            optimizer.state.clear()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        random.setstate(states[0])
        np.random.set_state(states[1])
        module.train(training)


def _drop_gradients(module: nn.Module) -> None:
    for weight in module.parameters():
        weight.grad = None


def _wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _forget_peak() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        forget_peak()


def _peak() -> int:
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_reserved())
    return peak_held_bytes()
