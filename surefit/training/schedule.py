"""The learning rate and the place in the data at each step, as pure functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from surefit.batches.order import Batches

SHAPES: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1 - done,
    "constant": lambda done: 1.0,
}


def lr_factor(step: int, num_steps: int, warmup: float, shape: str) -> float:
    """What the peak learning rate is multiplied by at `step` (from 1); never 0.

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
    """The factor of each step of a run that may have been extended.

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


@dataclass(frozen=True)
class Place:
    """One optimizer step in the order of the data."""

    step: int  # from 1, over all epochs
    epoch: int  # from 0
    index: int  # of the step in its epoch
    ends_epoch: bool


def places(batches: Batches, after: int, num_steps: int) -> Iterator[Place]:
    """The steps after step number `after`; resuming starts here, nothing is replayed."""
    in_epoch = batches.steps_per_epoch
    for before in range(after, num_steps):
        epoch, index = divmod(before, in_epoch)
        yield Place(before + 1, epoch, index, index == in_epoch - 1)
