"""The steps of a run: the place of each in the data, and its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
