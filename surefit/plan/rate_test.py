"""A short learning-rate test before the run: does the loss blow up at the rate that was asked for?

A few steps on real rows, with a rate that rises to the peak rate. Weights, buffers, random state
and optimizer are restored: training is the same as without the test, bit for bit.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, replace

from surefit.errors import describe_error
from surefit.findings import Finding, has_errors, note, rule
from surefit.memory.predict_peak import Fit, predict
from surefit.models.optimizer import OptimizerSettings
from surefit.models.quantize import num_weights
from surefit.pipeline.pipeline import Job
from surefit.pipeline.step import drop_gradients, forward_backward, trying_steps
from surefit.plan.draft import Draft
from surefit.plan.settle_job import is_called

RATE_TOO_HIGH = rule(
    "SF740",
    "error",
    "the learning rate makes the loss blow up",
    why="Within a few steps the weights are so far from where they began that nothing is left.",
    fix="Lower --lr.",
    accept="The run starts at this rate; it is stopped if the loss blows up.",
)

RATE_HIGH = rule(
    "SF741",
    "warning",
    "the learning rate is very high",
    why="In a few steps at this rate, the loss rises far above where it began.",
    fix="Lower --lr.",
    accept="The run starts at this rate.",
)

RAMP = (1e-3, 1e-3, 1e-2, 0.1, 0.3, 1.0, 1.0, 1.0)
"""The rates of the steps, as shares of the peak rate; the first two hardly move a weight."""
AT_PEAK = 3
"""Losses after a step at the peak rate."""
MAX_ROWS = 8
HIGH, BLOWN_UP = 5.0, 30.0
"""How many times its first value the loss reaches. Chosen by hand on a few tiny models and small
data sets, not on pretrained models or long runs: a rate that is too high for those may pass."""
WORSE_THAN_PRIOR = 2.0
"""A model that begins better than the unigram or majority baseline has lost what it knew where its
loss is this many times that of the baseline."""
MAX_SHARE, FREE_SECONDS = 0.1, 3.0
"""The test may take this share of the predicted time, or so many seconds of the processor."""
MAX_WEIGHTS_BESIDE_DEVICE = 50_000_000
"""Larger models that are trained on a device are not tried on the CPU, where planning has them."""


Losses = tuple[float, ...]
"""The loss before each step and after the last; fewer where it stopped being finite."""


@dataclass(frozen=True)
class Rates:
    """The peak rate and what else decides how far a step goes."""

    optimizer: OptimizerSettings
    clip: float
    default: float = 1e-3
    """The rate surefit would choose for this kind of model."""


def growth_of(losses: Losses, prior: float | None) -> float:
    """Return how many times its first value the loss is at the peak rate; infinite if not finite.

    For a model that began better than `prior`, the loss of a predictor that ignores the inputs, the
    scale is that loss.
    """
    first = statistics.median(losses[:2])
    if not all(map(math.isfinite, losses)):
        return math.inf
    last = statistics.median(losses[-AT_PEAK:])
    if prior is not None and first < prior / 2:  # it knew something
        return last / prior * HIGH / WORSE_THAN_PRIOR
    return last / max(first, prior or 0.0, 1e-6)


def choose_rate(d: Draft) -> tuple[bool | None, list[Finding]]:
    """Take a few steps at the peak rate of a new run whose rate somebody else than surefit chose.

    A module, loss or optimizer of the user's own may blow up at the default rate, too.
    """
    fit, default = d.plan.fit, d.built.default_lr
    assert fit is not None
    if not is_called(d) or d.request.choices is not None or has_errors(d.plan.findings):
        return False, []
    usual = d.source.auto_classes is not None and d.loss_fn is None
    if usual and d.optimizer == OptimizerSettings(default, d.config.weight_decay, ema=d.config.ema):
        return False, []
    known = [b["loss"] for b in d.plan.baselines.values() if "loss" in b]
    rates = Rates(d.optimizer, d.config.clip, default)
    return check_rate(d.work, fit, rates, max(known, default=None))


def count_copy(d: Draft) -> tuple[Fit, tuple[Finding, ...]]:
    """Return the fit with the memory that the test takes."""
    assert d.plan.fit is not None
    return with_copy(d.plan.fit, d.work), ()


def check_rate(
    job: Job, fit: Fit, rates: Rates, prior: float | None
) -> tuple[bool | None, list[Finding]]:
    """Try the rate; return whether it was tried, and None where the memory does not allow it.

    `prior` is that of `growth_of`.
    """
    tried: bool | None = False
    reason = _why_not(job, fit, rates)
    if not reason and fit.fits and with_copy(fit, job).fits is False:
        tried, reason = None, "the copy of the weights that it needs does not fit in memory"
    if reason:
        return tried, [note(f"The learning rate was not tested: {reason}.")]
    budget = max(FREE_SECONDS, MAX_SHARE * (fit.total_seconds or 0.0))
    try:
        losses = try_rate(job, rates, budget)
    except Exception as error:  # training fails in the same way, and keeps the batch it fails on
        message = f"The learning rate was not tested: {describe_error(error)}"[:300]
        return False, [note(message)]
    if losses is None:
        took = f"it would take more than {budget:.1f} s"
        return True, [note(f"The learning rate was not tested: {took}.")]
    if not all(map(math.isfinite, losses[:2])):
        return True, []  # not the rate's fault: training reports it with its batch
    growth = growth_of(losses, prior)
    if growth < HIGH:
        return True, []
    first, last, count = losses[0], statistics.median(losses[-AT_PEAK:]), len(losses) - 1
    rose = f"from {first:.4g} to {last:.4g}" if math.isfinite(growth) else "to NaN or infinity"
    by_pattern = "".join(f", {name} {rate:g}" for name, rate in rates.optimizer.lr_by.items())
    peak = f"With lr {rates.optimizer.lr:g}{by_pattern}"
    message = f"{peak}, {count} steps on real rows bring the loss {rose}."
    broken = RATE_TOO_HIGH if growth >= BLOWN_UP else RATE_HIGH
    works = _rate_that_works(job, rates, budget, prior)
    return True, [broken.finding(message, fix=_fix(rates, works))]


def _why_not(job: Job, fit: Fit, rates: Rates) -> str:
    """Why the test is left out; empty where it is not."""
    if getattr(rates.optimizer.passed, "state", None):
        return "the optimizer passed in already has a state"
    if fit.limit.source == "max_memory_gb":
        return "max_memory_gb bounds the run, and the test comes before it"
    size = sum(num_weights(weight) for weight in job.pipeline.module.parameters())
    if fit.limit.on_device and size > MAX_WEIGHTS_BESIDE_DEVICE:
        return "the model is too large to be tried on the CPU before the run"
    if fit.step_seconds is None or fit.total_seconds is None:
        return ""
    seconds = (len(RAMP) + 1) * fit.step_seconds / max(job.batches.grad_accum, 1)
    if seconds > max(FREE_SECONDS, MAX_SHARE * fit.total_seconds):
        share = seconds / max(fit.total_seconds, 1e-9)
        return f"it would take about {seconds:.1f} s, {share:.0%} of the predicted time"
    return ""


def with_copy(fit: Fit, job: Job) -> Fit:
    """Return the fit with the test's copy of the weights, beyond what its smaller batch leaves
    free.

    Of a model that is divided over processes, planning has the whole.
    """
    if fit.peak_bytes is None:
        return fit
    peak: int | None = fit.peak_bytes
    if job.parallel == "fsdp" and job.batches.num_processes > 1:
        peak = predict(replace(job, parallel="ddp"), fit.limit).peak_bytes
    if peak is None:  # unknown
        return replace(fit, peak_bytes=fit.limit.bytes + 1)
    copied = sum(w.nbytes for w in job.pipeline.module.parameters() if w.requires_grad)
    rows, _ = job.batches.longest()
    spared = fit.parts.get("activations", 0) * (1 - min(1.0, MAX_ROWS / max(rows, 1)))
    more = max(0, peak + copied - int(spared) - fit.peak_bytes)
    return replace(fit, parts={**fit.parts, "rate_test": more}, peak_bytes=fit.peak_bytes + more)


def _rate_that_works(job: Job, rates: Rates, budget: float, prior: float | None) -> float | None:
    """The rate surefit would choose, or the first tenth of the rate, whose loss does not grow."""
    lower = [rates.optimizer.lr / float(10**power) for power in range(1, 5)]
    tried = [rates.default, *lower] if rates.default < rates.optimizer.lr else lower
    for lr in tried if rates.optimizer.passed is None else ():
        losses = try_rate(job, replace(rates, optimizer=rates.optimizer.scaled(lr)), budget)
        if losses is not None and growth_of(losses, prior) < 2.0:
            return lr
    return None


def _fix(rates: Rates, works: float | None) -> str:
    if rates.optimizer.passed is not None:
        return "Make the optimizer with a lower lr."
    too = " and the rates of lr_by lower by the same factor" if rates.optimizer.lr_by else ""
    if works is None:
        lower = f"{rates.optimizer.lr / 1e5:.0e}"
        return f"Use a far lower rate: --lr {lower}{too}, for example.".replace("e-0", "e-")
    return f"Use --lr {works:.0e}{too}; at that rate the loss does not rise.".replace("e-0", "e-")


def try_rate(job: Job, rates: Rates, budget_seconds: float) -> Losses | None:
    """Take a few steps at rates that rise to the peak; None where they would take longer.

    Everything is restored.
    """
    import torch

    pipeline, batches = job.pipeline, job.batches
    optimizer = rates.optimizer.make(pipeline.module)
    peaks = [group["lr"] for group in optimizer.param_groups]
    sizes = [len(batches.step_rows(0, index)) for index in range(min(batches.steps_per_epoch, 16))]
    usable = [index for index, size in enumerate(sizes) if size == max(sizes)]
    losses: list[float] = []
    began = 0.0
    with trying_steps(pipeline.module, optimizer) as trained:
        torch.manual_seed(pipeline.seed)
        for place, share in enumerate((*RAMP, 0.0)):  # after the last step, the loss alone counts
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * share
            rows = batches.step_rows(0, usable[place % len(usable)])[:MAX_ROWS]
            batch = pipeline.batch(job.train, rows)
            found = forward_backward(pipeline.call, pipeline.loss, pipeline.module, batch)
            losses.append(found.mean)
            if not math.isfinite(losses[-1]):
                break
            if rates.clip:
                torch.nn.utils.clip_grad_norm_(trained, rates.clip)
            optimizer.step()
            drop_gradients(pipeline.module)
            if place == 0:  # the first step is slower than the others
                began = time.process_time()
            elif len(RAMP) * (time.process_time() - began) / place > budget_seconds:
                return None
    return tuple(losses)
