"""The last stage of a plan: micro-batch size, peak memory and time of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from surefit.checks.module_checks import check_single_rows, find_min_rows
from surefit.config import DEFAULT_ROWS, Generation
from surefit.data.row_arrays import Axis
from surefit.findings import Finding, note, rule
from surefit.gigabytes import show_gb
from surefit.memory.advise import Trials, advise
from surefit.memory.limit import Limit, find_limit
from surefit.memory.predict_peak import Fit, describe_untraced, predict, trace_worst
from surefit.memory.trace_step import Traced
from surefit.pipeline.pipeline import Job, Pipeline
from surefit.plan.draft import Draft
from surefit.processes import num_processes
from surefit.request import Request
from surefit.targets.generation import num_new_tokens

DOES_NOT_FIT = rule(
    "SF400",
    "error",
    "does not fit in memory",
    why="The run would be killed, or fail with 'out of memory', at its largest micro-batch.",
    fix="Use a smaller batch_size with a larger grad_accum, gradient checkpointing, parallel=fsdp "
    "with several processes, LoRA or a shorter max_seq_length.",
)

NOTHING_TO_DIVIDE = rule(
    "SF446",
    "warning",
    "parallel=fsdp with one process",
    why="fsdp divides the model over processes. One process holds all of it, as with ddp.",
    fix="Start several processes (--processes N), or leave parallel out.",
)

IDLE_PROCESSES = rule(
    "SF447",
    "warning",
    "more processes than micro-batches",
    why="A step has fewer micro-batches than there are processes. The others compute a row whose "
    "loss does not count.",
    fix="Use fewer processes, or a smaller batch_size.",
)

SHOWN_OPTIONS = 4
MOST_ROWS = 256
"""The most rows per step where nobody sets batch_size."""
LEAST_STEPS = 100
"""Steps of an epoch that larger batches must leave."""


def usual_rows(d: Draft) -> int:
    """Return the rows per step and process where nobody sets them."""
    config, inputs, head = d.config, d.task.reads.inputs, d.task.head_for(d.encoder)
    tables = (each for each in inputs if each.role is None)
    given = d.task.reads.input_of(d.encoder.roles) or next(tables, None)
    asks = (config.max_steps, config.max_tokens, d.loss_fn, d.objects.collate_fn)
    if given is None or head is None or head.per_pixel or any(each is not None for each in asks):
        return DEFAULT_ROWS
    if config.batch_size is not None or config.grad_accum > 1 or not given.is_small(d.encoder):
        return DEFAULT_ROWS
    rows = DEFAULT_ROWS
    per_process = len(d.train) // (d.request.processes or num_processes())
    while rows < MOST_ROWS and 2 * rows * LEAST_STEPS <= per_process:
        rows *= 2
    return rows


def is_chosen(d: Draft) -> bool:
    """Return whether the micro-batch is the largest one that fits."""
    return d.config.batch_size == "auto" or usual_rows(d) > DEFAULT_ROWS


def generation_size(
    pipeline: Pipeline, wanted: Generation, num_rows: int
) -> tuple[int, int] | None:
    """Return rows and new tokens that an evaluation generates; None where it generates nothing."""
    generate = pipeline.task.generate
    if generate is None or not generate.names or not wanted.rows or not num_rows:
        return None
    can = generate.possible(pipeline.module, pipeline.encoder)
    new_tokens = num_new_tokens(pipeline.encoder, wanted.max_new_tokens)
    return (wanted.rows * wanted.samples, new_tokens) if can else None


def settle_batch_size(d: Draft) -> tuple[tuple[Job, Request], list[Finding]]:
    """Return the batch size that nobody sets; auto is the largest micro-batch that fits.

    It divides the effective batch size, which stays the same.
    """
    if not is_chosen(d):
        config = d.config.model_copy(update={"batch_size": DEFAULT_ROWS})
        return (d.work, replace(d.request, config=config)), []
    job, effective, found = d.work, d.work.batches.batch_size, list[Finding]()
    try:
        job = Trials(job, d.limit).largest_batch(job)
    except Exception as error:  # the model's own code may fail on the meta device in any way
        found.append(note(f"The batch size stays {effective}: {describe_untraced(error)}"))
    batches, layer = job.batches, find_min_rows(job.pipeline.module, None)[1]
    sizes = {"batch_size": batches.batch_size, "grad_accum": batches.grad_accum}
    message = (
        f"batch_size is {batches.batch_size} and grad_accum {batches.grad_accum}: the largest "
        f"micro-batch that fits, at an effective batch size of {effective}."
    )
    found += [note(message), *check_single_rows(batches, d.config.epochs, layer)]
    return (job, replace(d.request, config=d.config.model_copy(update=sizes))), found


def trace_largest(d: Draft) -> tuple[Traced | None, Iterable[Finding]]:
    """Trace the largest micro-batch; None if the model's code cannot run on the meta device."""
    try:
        return trace_worst(d.work), ()
    except Exception:  # the prediction reports it
        return None, ()


def predict_fit(job: Job, limit: Limit, traced: Traced | None) -> tuple[Fit, list[Finding]]:
    """Predict peak memory and time; if the run does not fit, find options that would."""
    fit, found = predict(job, limit, traced), check_processes(job)
    if fit.unknown:
        message = f"Memory and time are not predicted: {fit.unknown}"
        return fit, [*found, note(message)]
    if fit.fits is not False:
        return fit, found
    assert fit.peak_bytes is not None
    fit, refusal = refuse(fit, job, fit.peak_bytes)
    return fit, [*found, refusal]


def check_processes(job: Job) -> list[Finding]:
    """Return whether each process has a share of the model and of each step."""
    count = job.batches.num_processes
    if count == 1:
        found = NOTHING_TO_DIVIDE.finding("parallel is fsdp, and there is one process.")
        return [found] if job.parallel == "fsdp" else []
    num_micro_batches = len(job.batches.micro_batches(0, 0))
    if num_micro_batches >= count:
        return []
    rows = len(job.train)
    message = (
        f"The first step has {num_micro_batches} micro-batches of up to {job.batches.batch_size} "
        f"rows for {count} processes: {count - num_micro_batches} of them have nothing to train "
        f"on. There are {rows:,} training rows."
    )
    return [IDLE_PROCESSES.finding(message)]


def refuse(fit: Fit, job: Job, peak: int | None) -> tuple[Fit, Finding]:
    """Return the finding that a run does not fit, with the options that would.

    `peak` is None if the measured step ran out of memory: all that is known is that the limit is
    exceeded.
    """
    over = max(peak or fit.peak_bytes or 0, fit.limit.bytes + 1)
    max_length = job.pipeline.encoder.max_length
    options = advise(job, fit.limit, max_length, over)
    options.sort(key=lambda option: not option["fits"])  # stable: the least change first
    fit = replace(fit, advice=tuple(options))
    rows, length = job.batches.longest()
    message = (
        f"Peak memory is {show_gb(peak)} at the largest micro-batch ({rows} × {length}); the limit "
        f"is {fit.limit}."
        if peak is not None
        else f"The largest micro-batch ({rows} × {length}) needs more memory than the limit of "
        f"{fit.limit}: an allocation failed."
    )
    return fit, DOES_NOT_FIT.finding(message, fix=_suggest(options))


def _suggest(options: list[dict[str, Any]]) -> str:
    fitting = [option for option in options if option["fits"]]
    shown = "; or ".join(_describe(option) for option in (fitting or options)[:SHOWN_OPTIONS])
    if fitting:
        return f"Set {shown}."
    if options:
        return f"No option that was tried fits; the nearest: {shown}. Use a smaller model."
    return "Use a smaller model or batch size, a shorter max_seq_length, or more memory."


def _describe(option: Mapping[str, Any]) -> str:
    settings = " and ".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in option["set"].items()
    )
    return f"{settings} ({show_gb(option['predicted_peak_bytes'])})"


@dataclass(frozen=True)
class BatchBound:
    """What bounds a batch of feature rows: rows, sequence length and positions."""

    rows: int
    longest: int | None
    max_tokens: int | None


def check_batch(bound: BatchBound, limit: Limit, steps: Axis, width: Axis) -> None:
    """Refuse a batch that exceeds the memory limit, before rows are read and encoded for it."""
    rows, longest = bound.rows, min(steps.most, bound.longest or steps.most)
    if bound.max_tokens is not None and longest:
        rows = min(rows, max(1, bound.max_tokens // longest))
    if limit.on_device and not limit.is_planned_device:  # a batch is made in host memory
        limit = min(limit, find_limit(host=True), key=lambda each: each.bytes)
    needed = batch_bytes(rows, longest, width.most)
    if needed <= limit.bytes:
        return
    free, one_row = limit.free_bytes, batch_bytes(1, longest, width.most)
    most = rows_that_fit(free, longest, width.most)
    fix = f"Use --batch-size {most} or less, or truncate rows with --max-seq-length."
    if most == 0:
        fix = (
            f"Truncate rows with --max-seq-length, or use more memory: one row takes "
            f"{show_gb(one_row)}, and {show_gb(free)} of the limit are free."
        )
    raise DOES_NOT_FIT.error(
        f"A batch of {rows} rows of [{longest}, {width}] takes {show_gb(needed)}; the memory limit "
        f"is {limit}.",
        fix=fix,
    )


def batch_bytes(batch_size: int, length: int, feature_size: int) -> int:
    """Return bytes of one batch of float32 features.

    >>> batch_bytes(256, 999, 4000)
    4091904000
    """
    return batch_size * length * feature_size * 4


def rows_that_fit(limit_bytes: int, length: int, feature_size: int) -> int:
    """Return the largest batch size whose features fit into the limit.

    >>> rows_that_fit(2 * 10**9, 999, 4000)
    125
    """
    return limit_bytes // batch_bytes(1, length, feature_size)
