"""The learning rate of each step, its place in the data, and its batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import tee
from typing import Any

import numpy as np

from surefit.batches.loading import from_workers, prefetch
from surefit.batches.order import Batches, Share
from surefit.pipeline.pipeline import Job
from surefit.pipeline.step import Place, Rows, StepBatches
from surefit.run.choose_checkpoint import State
from surefit.training.engine import Engine

Feed = Callable[[Iterator[tuple[int, Rows]]], Iterator[Mapping[str, Any]]]
"""Batches for pairs of epoch and rows, in their order, made ahead of time."""

SHAPES: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1 - done,
    "constant": lambda done: 1.0,
}


def lr_factor(step: int, num_steps: int, warmup: float, shape: str) -> float:
    """Return what the peak learning rate is multiplied by at `step` (from 1); never 0.

    >>> [round(lr_factor(step, 4, 0.25, "linear"), 2) for step in (1, 2, 3, 4)]
    [1.0, 1.0, 0.67, 0.33]
    """
    warm_steps = math.ceil(num_steps * warmup)
    if step <= warm_steps:
        return step / warm_steps
    return SHAPES[shape]((step - 1 - warm_steps) / (num_steps - warm_steps))


def lr_by_step(
    spans: Sequence[tuple[int, int]], warmup: float, shape: str
) -> Callable[[int], float]:
    """Return the factor of each step of a run that may have been extended.

    `spans` are pairs: after which step a total number of steps applies. The schedule of a total is
    computed as if the whole run had it.

    >>> at = lr_by_step([(0, 2), (2, 8)], 0.0, "linear")
    >>> [at(step) for step in (1, 2, 3, 5)]
    [1.0, 0.5, 0.75, 0.5]
    """

    def factor(step: int) -> float:
        num_steps = [total for after, total in spans if after < step][-1]
        return lr_factor(step, num_steps, warmup, shape)

    return factor


def places(batches: Batches, after: int, num_steps: int) -> Iterator[Place]:
    """Yield the steps after step number `after`; resuming starts here, nothing is replayed."""
    in_epoch = batches.steps_per_epoch
    for before in range(after, num_steps):
        epoch, index = divmod(before, in_epoch)
        yield Place(before + 1, epoch, index, index == in_epoch - 1)


def split_share(share: Share, splits: int) -> Share:
    """Return the share with each micro-batch in so many parts; a part has at least one row."""
    if splits == 1:
        return share
    parts = (np.array_split(rows, min(splits, len(rows))) for rows in share.micro_batches)
    return Share(tuple(part for each in parts for part in each), share.weight)


def load_steps(
    engine: Engine, batches: Batches, feed: Feed, num_steps: int, state: State
) -> Iterator[StepBatches]:
    """Yield steps to come after a state, with this process's batches made ahead of their turn."""
    process, splits = engine.accelerator.process_index, state.splits
    steps, ahead = tee(
        (place, split_share(batches.share(place.epoch, place.index, process), splits))
        for place in places(batches, state.step, num_steps)
    )
    loaded = feed((place.epoch, rows) for place, share in ahead for rows in share.micro_batches)
    for place, share in steps:
        yield StepBatches(place, share, loaded)


def make_feed(
    job: Job,
    engine: Engine,
    workers: int = 0,
    notice: Callable[[str], None] = lambda text: None,
) -> Feed:
    """Return what makes batches ahead of their turn: a thread, or worker processes on the CPU."""
    import torch

    device = engine.accelerator.device
    if device.type == "cuda" and device.index is None:  # the thread has a current device of its own
        device = torch.device(device.type, torch.accelerator.current_device_index())

    def load(wanted: tuple[int, Any]) -> Mapping[str, Any]:
        epoch, rows = wanted
        return job.batch(rows, epoch, "cpu" if workers else device)

    if workers:
        return lambda wanted: from_workers(wanted, load, workers, device, notice)
    draws = job.pipeline.live is not None or job.pipeline.collate_fn is not None
    if draws:  # a thread would share the random state of the step
        return lambda wanted: map(load, wanted)
    return lambda wanted: prefetch(wanted, load)
