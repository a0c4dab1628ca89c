"""Who hears the events of a run, and the checks of what is learned among them.

The checks are for weights that do not move and a loss that blows up or does not fall. A warning is
an event of the run and is shown in its report.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from surefit.errors import RunFailedError
from surefit.findings import Finding, rule
from surefit.models.sharding import own_shard
from surefit.pipeline.own_step import OwnStep
from surefit.pipeline.pipeline import Job
from surefit.processes import gather, is_main
from surefit.run.events import Event, Observer, event_writer, read_events
from surefit.targets.baselines import judge_by_trees
from surefit.training.work import Work

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import nn


def warning_event(found: Finding, step: int, epoch: int) -> Event:
    """Return a Finding of the run as an event."""
    return {
        "event": "warning",
        "step": step,
        "epoch": epoch,
        "code": found.code,
        "message": found.message,
        "fix": found.fix,
    }


WEIGHTS_DO_NOT_MOVE = rule(
    "SF743",
    "warning",
    "weights that get a gradient do not move",
    why=(
        "The optimizer does not hold them, or its steps are smaller than the precision of the "
        "weights."
    ),
    fix="Make the optimizer from all trainable parameters, or raise --lr.",
)

STEPS = 3
"""Steps with a learning rate above 0 after which weights are looked at. An adapter is a product of
two matrices, one of which starts at zero: the other only moves in the second step."""
SHOWN = 5
CHUNK = 1 << 20
"""Values of a weight that are fingerprinted at once."""


def check_trained(module: nn.Module, meant: Collection[str]) -> None:
    """Require that exactly the named parameters take gradients."""
    taking = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    wrong = {
        "are to be trained take no gradient": sorted(set(meant) - taking),
        "are to stay frozen take gradients": sorted(taking - set(meant)),
    }
    for how, names in wrong.items():
        if names:
            raise RunFailedError(
                f"{len(names)} weights that {how}: {_shown(names)}.",
                "Let nothing change requires_grad between the plan and the run.",
            )


def watch_first_steps(
    module: nn.Module, optimizer: Any, meant: Collection[str], emit: Observer
) -> Observer:
    """Return an observer that stops a run that cannot learn, and warns of weights that do not move.

    Of `meant`, each weight must move. Steps that were skipped or had a rate of 0 do not count.
    """
    register = getattr(optimizer, "register_step_pre_hook", None)
    if register is None:  # an optimizer that is not torch's
        return lambda event: None
    seen, counted = _Seen(module), 0
    hook = register(seen.look)

    def observe(event: Event) -> None:
        nonlocal counted
        rates = (group["lr"] for group in optimizer.param_groups)
        if counted < STEPS and event["event"] == "step" and not event.get("skipped") and any(rates):
            counted += 1
            if counted == STEPS:
                hook.remove()
                _conclude(seen, meant, event, emit)

    return observe


class _Seen:
    """Which weights had a gradient, and their fingerprints before the first step."""

    def __init__(self, module: nn.Module) -> None:
        self.named = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self.before: dict[str, int] = {}
        self.reached: set[str] = set()

    def look(self, *_: Any) -> None:
        """Look at the gradients; the optimizer calls it before each of the first steps."""
        self.before = self.before or {n: fingerprint(p) for n, p in self.named.items()}
        for name, weight in self.named.items():
            is_new = name not in self.reached and weight.grad is not None
            if is_new and own_shard(weight.grad).any():
                self.reached.add(name)


def _conclude(seen: _Seen, meant: Collection[str], event: Event, emit: Observer) -> None:
    moved = {n for n in seen.named if fingerprint(seen.named[n]) != seen.before[n]}
    seen_by_all = gather((seen.reached, moved))
    reached = set().union(*(each for each, _ in seen_by_all))
    moved = set().union(*(each for _, each in seen_by_all))
    raise_rate = "Raise --lr, use precision=fp32, or check the optimizer's parameters."
    if not reached:
        raise RunFailedError(
            f"The gradients of all {len(seen.named)} trainable weights were 0 in the first {STEPS} "
            "steps, so nothing can be learned.",
            "Check that the loss depends on the model's outputs and the outputs on its weights.",
        )
    if not moved:
        raise RunFailedError(
            f"No weight has moved in the first {STEPS} steps (lr {event['lr']:.3g}).", raise_rate
        )
    if still := sorted(set(meant) - moved):
        raise RunFailedError(
            f"After {STEPS} steps {len(still)} of {len(meant)} weights that are to be trained have "
            f"not moved: {_shown(still)}.",
            raise_rate,
        )
    if still := sorted(reached - moved):
        message = f"{len(still)} of {len(seen.named)} trainable weights get a gradient and have "
        message += f"not moved in {STEPS} steps: {_shown(still)}."
        found = WEIGHTS_DO_NOT_MOVE.finding(message)
        emit(warning_event(found, event["step"], event["epoch"]))


def _shown(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (" …" if len(names) > SHOWN else "")


def fingerprint(weight: torch.Tensor) -> int:
    """Return a number that changes with any bit of the weight, but for chance.

    Each bit counts by its place: the two biases of a softmax move by the same amount, one up and
    one down.

    >>> import torch
    >>> fingerprint(torch.tensor([1.0, 1.5])) == fingerprint(torch.tensor([1.5, 1.0]))
    False
    """
    import torch

    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    own = own_shard(weight.detach())
    flat = own.view(whole[own.dtype.itemsize]).reshape(-1)
    places = torch.arange(1, 2 * min(len(flat), CHUNK) + 1, 2, device=flat.device)
    parts = [flat[start : start + CHUNK] for start in range(0, len(flat), CHUNK)]
    sums = [(part * places[: len(part)]).sum() for part in parts]
    return sum(n * int(part) for n, part in enumerate(sums, start=1))


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
    """Return how many losses came before the last few that are all blown up; None where they are
    not.

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
    """Return whether the second half of the losses is that of the prior, and is not falling.

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
        """Judge the losses where the event is a step."""
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


@contextmanager
def write_events(work: Work) -> Iterator[None]:
    """While the block runs, let the main process write and show events, and all check them."""
    work.watch.checks = _checks(work)
    if not is_main():
        yield
        return
    with event_writer(work.run.events_path) as write:
        trackers: list[Observer] = []
        if work.plan.config.trackers:
            work.engine.accelerator.init_trackers("surefit")
            trackers = [partial(_track, work.engine.accelerator)]
        callbacks = work.plan.objects.callbacks
        work.watch.observers = (write, *work.listeners.observers, *callbacks, *trackers)
        yield
    for tracker in work.engine.accelerator.trackers:
        tracker.finish()  # and not end_training: further runs of this process use its group


def _checks(work: Work) -> list[Observer]:
    """Return the checks of what is learned.

    Every process checks that what is to be trained takes gradients, and where the run is new, that
    the first steps move it; and that the loss neither blows up nor stays.
    """
    assert work.plan.model is not None
    module, adaptation = work.job.pipeline.module, work.plan.model.adaptation
    checks: list[Observer] = []
    if isinstance(work.job.pipeline.loss, OwnStep):  # the sum of its losses need not fall
        return checks
    if adaptation is not None:
        check_trained(module, adaptation.trained)
    if work.state.step == 0:
        meant = adaptation.trained - adaptation.not_in_every_batch if adaptation is not None else ()
        optimizer = work.engine.plain_optimizer
        checks.append(watch_first_steps(module, optimizer, meant, work.watch.emit))
    losses = LossWatch(work.watch.emit, work.job.num_steps, _prior_loss(work.job))
    for event in read_events(work.run.events_path):
        losses.remember(event)
    return [*checks, losses.observe]


def _prior_loss(job: Job) -> float | None:
    """Return the training loss of a predictor that ignores the inputs; None where there is none."""
    measure = job.pipeline.task.figures.baselines
    if measure is None:
        return None
    known = measure(job.train, job.train, job.pipeline.encoder).values()
    return next((figures["loss"] for figures in known if "loss" in figures), None)


def _track(accelerator: Accelerator, event: Event) -> None:
    if event["event"] == "warning":
        return
    values = event["metrics"] if event["event"] == "eval" else event
    prefix = "eval/" if event["event"] == "eval" else "train/"
    numbers = {
        prefix + name: value
        for name, value in values.items()
        if isinstance(value, int | float) and name != "step"
    }
    accelerator.log(numbers, step=event["step"])


def judge_best_step(work: Work) -> None:
    """Compare the best step of a run that has come to its end with the trees of its plan."""
    job, run, state, history = work.job, work.run, work.state, work.run.history
    evals = [event for event in history if event["event"] == "eval"]
    best = next((e for e in evals if e["step"] == state.best_step), None)
    if best is None or not is_main() or work.job.pipeline.counts_in_loss:
        return
    if state.step < job.batches.steps_per_epoch:
        return  # fewer steps than one epoch say nothing about the network
    found = judge_by_trees(best["metrics"], run.plan.get("baselines", {}), len(job.validation))
    if found is None:
        return
    event = warning_event(found, state.step, evals[-1]["epoch"])
    if event not in history:  # written before the process was killed
        work.watch.emit(event)
