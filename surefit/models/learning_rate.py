"""The learning rate of each step, as a factor of its peak."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DECAY_SHARE = 0.2
"""Share of the steps after the warm-up in which `wsd` (warm-up, stable, decay) decays."""

SHAPES: Mapping[str, Callable[[float], float]] = {
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1 - done,
    "constant": lambda done: 1.0,
    "wsd": lambda done: min(1.0, (1 - done) / DECAY_SHARE),
}
"""What is left of the way from the peak to the end, by the share of the steps after the warm-up."""
INVERSE_SQRT = "inverse-sqrt"
NAMES = (*SHAPES, INVERSE_SQRT)


@dataclass(frozen=True)
class Schedule:
    """How the learning rate rises to its peak, and what follows.

    >>> schedule = Schedule("linear", warmup=0.25, end=0.1)
    >>> [round(schedule.factor(step, 4), 2) for step in (1, 2, 3, 4)]
    [1.0, 1.0, 0.7, 0.4]
    """

    shape: str = "cosine"
    warmup: float = 0.0
    end: float = 0.0
    restarts: int = 0

    @classmethod
    def of(cls, config: Any) -> Schedule:
        """Return the schedule of a run's config."""
        return cls(config.schedule, config.warmup, config.schedule_end, config.restarts)

    def factor(self, step: int, num_steps: int) -> float:
        """Return what the peak is multiplied by at `step` (from 1) of so many; never 0."""
        warm_steps = math.ceil(num_steps * self.warmup)
        if step <= warm_steps:
            return step / warm_steps
        if self.shape == INVERSE_SQRT:
            return math.sqrt(max(1, warm_steps) / max(1, step - 1))
        done = (step - 1 - warm_steps) / (num_steps - warm_steps) * (self.restarts + 1)
        return self.end + (1 - self.end) * SHAPES[self.shape](done % 1)

    def by_step(self, spans: Sequence[tuple[int, int]]) -> Callable[[int], float]:
        """Return the factor of each step of a run that may have been extended.

        `spans` are pairs: after which step a total number of steps applies. The factors of a total
        are computed as if the whole run had it.

        >>> at = Schedule("linear").by_step([(0, 2), (2, 8)])
        >>> [at(step) for step in (1, 2, 3, 5)]
        [1.0, 0.5, 0.75, 0.5]
        """

        def factor(step: int) -> float:
            return self.factor(step, [total for after, total in spans if after < step][-1])

        return factor
