"""The loss of a run: stopped where it blows up, reported where it shows that nothing is learned.

Both are functions of the losses so far, so a resumed run decides as an uninterrupted one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from surefit.errors import RunFailedError
from surefit.findings import rule
from surefit.run.events import Event, Observer
from surefit.training.run_warnings import warning_event

NOTHING_LEARNED = rule(
    "SF744",
    "warning",
    "the loss is that of a model without inputs",
    why=(
        "Predicting the shares of the classes, the mean or the frequency of tokens gives this loss "
        "without looking at the inputs."
    ),
    fix="Check that labels belong to their rows and what the model can see of the input; then try "
    "another learning rate.",
)

LAST, BLOWN_UP, UNKNOWN_SCALE = 5, 30.0, 1000.0
"""A run has diverged if the mean loss of 5 steps is 30 times the first loss and that of a predictor
that ignores the inputs, and none of them is near these: the threshold of the learning-rate test
(plan/rate_test.py). Without such a predictor, the first loss may be small by chance: 1000 times."""
MIN_STEPS, MIN_STEPS_HALFWAY = 100, 400
"""Steps after which the end of a run, or its half, is judged."""
LEARNED_SHARE = 0.01
"""A run that has learned at least this share of the prior loss is not stuck."""
CERTAIN = 3.0
"""Standard errors by which a falling loss must differ from a constant one."""


class DivergedError(RunFailedError):
    """The loss blew up; `last_good` is the last step before it did."""

    def __init__(self, message: str, fix: str, last_good: int) -> None:
        super().__init__(message, fix)
        self.last_good = last_good


def diverged_since(losses: Sequence[float], prior: float | None) -> int | None:
    """How many losses came before the last few that are all blown up; None where they are not.

    >>> diverged_since([2.0] * 9 + [400.0] * 5, 2.0), diverged_since([2.0] * 9 + [400.0], 2.0)
    (9, None)
    """
    if len(losses) <= LAST:
        return None
    scale = max(losses[0], prior or 0.0)
    last = losses[-LAST:]
    factor = UNKNOWN_SCALE if prior is None else BLOWN_UP
    is_blown_up = statistics.fmean(last) > factor * scale > 0 and min(last) > 3 * scale
    return len(losses) - LAST if is_blown_up else None


def is_stuck(losses: Sequence[float], prior: float) -> bool:
    """Whether the second half of the losses is that of the prior, and is not falling.

    The mean must be within 1 % of the prior loss or above it; and the last quarter must not be
    lower than the third by three standard errors, so that slow runs are left alone.
    """
    half = losses[len(losses) // 2 :]
    early, late = half[: len(half) // 2], half[len(half) // 2 :]
    if statistics.fmean(half) < (1 - LEARNED_SHARE) * prior or len(early) < 2:
        return False
    spread = math.sqrt(statistics.variance(early) / len(early))
    spread = math.hypot(spread, math.sqrt(statistics.variance(late) / len(late)))
    return statistics.fmean(early) - statistics.fmean(late) < CERTAIN * spread


@dataclass
class LossWatch:
    """Hears every event; `prior` is the loss of a predictor that ignores the inputs."""

    emit: Observer
    num_steps: int
    prior: float | None
    losses: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    has_warned: bool = False

    def remember(self, event: Event) -> None:
        """Take in an event of the run's earlier part."""
        loss = event.get("loss")
        if event["event"] == "step" and loss is not None and math.isfinite(loss):
            self.losses.append(loss)
            self.steps.append(event["step"])
        self.has_warned |= event["event"] == "warning" and event["code"] == NOTHING_LEARNED.code

    def observe(self, event: Event) -> None:
        """Pass the event on, and judge the losses where it is a step."""
        self.emit(event)
        self.remember(event)
        if event["event"] != "step":
            return
        before = diverged_since(self.losses, self.prior)
        if before is not None:
            raise self._diverged(before)
        step = event["step"]
        ends = step == self.num_steps >= MIN_STEPS
        halfway = step == self.num_steps // 2 >= MIN_STEPS_HALFWAY
        if (ends or halfway) and self.prior and not self.has_warned:
            self._check_stuck(event, self.prior)

    def _check_stuck(self, event: Event, prior: float) -> None:
        if not is_stuck(self.losses, prior):
            return
        mean = statistics.fmean(self.losses[len(self.losses) // 2 :])
        message = (
            f"After {event['step']} steps the loss is {mean:.4g} and does not fall; a predictor "
            f"that ignores the inputs has {prior:.4g}."
        )
        found = NOTHING_LEARNED.finding(message)
        self.has_warned = True
        self.emit(warning_event(found, event["step"], event["epoch"]))

    def _diverged(self, before: int) -> DivergedError:
        last_good = self.steps[before - 1]
        return DivergedError(
            f"The loss has blown up: {self.losses[0]:.4g} at step 1, {self.losses[-1]:.4g} at step "
            f"{self.steps[-1]}. The last good step is {last_good}.",
            "Lower --lr, or keep clip above 0.",
            last_good,
        )
