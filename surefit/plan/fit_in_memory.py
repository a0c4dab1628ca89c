"""The last stage of a plan: micro-batch size, peak memory and time of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from surefit.batches.loading import load_batch
from surefit.batches.order import Batches
from surefit.config import RunConfig
from surefit.encode.store import Store
from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.memory.advise import Trials, advise, largest_batch
from surefit.memory.gigabytes import show_gb
from surefit.memory.limit import find_limit
from surefit.memory.predict_peak import Fit, Workload, predict
from surefit.plan.build_model import Fitted
from surefit.plan.plan import Given, Parts
from surefit.processes import num_processes
from surefit.tasks.task_spec import TaskSpec

if TYPE_CHECKING:
    import torch

DOES_NOT_FIT = rule(
    "SF400",
    "error",
    "does not fit in memory",
    why="The run would be killed, or fail with 'out of memory', at its largest micro-batch.",
    fix="Use a smaller batch_size with a larger grad_accum, gradient checkpointing, LoRA or a "
    "shorter max_seq_length.",
)

BATCH_SIZE_CHOSEN = rule(
    "SF405",
    "info",
    "batch size chosen",
    why="batch_size is auto: surefit chose the largest micro-batch that fits, and saves it in the "
    "run's config.",
    fix="Nothing to do.",
)

MEMORY_NOT_PREDICTED = rule(
    "SF406",
    "info",
    "memory not predicted",
    why="The model's code cannot run on the meta device, which has shapes and no values.",
    fix="Nothing to do; training still starts with a measured step on the largest micro-batch.",
)


DEFAULT_ROWS = 8
SHOWN_OPTIONS = 4


def make_batches(config: RunConfig, train: Store) -> Batches:
    """The order of the rows; with batch_size=auto, one micro-batch is a whole step for now."""
    auto = config.batch_size == "auto"
    if auto and config.max_tokens is not None:
        raise UsageError(
            f"batch_size is auto and max_tokens {config.max_tokens}: both bound a micro-batch.",
            "Use one of them.",
        )
    return Batches(
        train.lengths,
        config.seed,
        DEFAULT_ROWS * config.grad_accum if auto else config.micro_batch_rows,
        1 if auto else config.grad_accum,
        num_processes(),
        config.max_tokens,
    )


def make_workload(
    task: TaskSpec,
    config: RunConfig,
    given: Given,
    fitted: Fitted | Parts,
    train: Store,
    evaluation: Store,
    batches: Batches,
) -> Workload:
    """The model, the data and the batches of a run, as far as memory and time depend on them."""
    prepare = task.preparer(fitted.encoder, config.seed)
    num_steps = sum(batches.num_steps(epoch) for epoch in range(config.epochs))
    generate = task.generate
    generates = None
    if generate is not None and generate.names and config.generate.rows and len(evaluation):
        can = generate.possible(fitted.module, fitted.encoder)
        generates = (config.generate.rows, config.generate.max_new_tokens) if can else None
    return Workload(
        fitted.module,
        fitted.call,
        fitted.loss,
        lambda store, rows: load_batch(
            store, rows, fitted.fields, given.collate_fn, prepare=prepare, layout=fitted.layout
        ),
        train,
        evaluation,
        batches,
        min(num_steps, config.max_steps or num_steps),
        config.epochs,
        config.eval_every,
        generates,
        autocast_dtype(config),
    )


def autocast_dtype(config: RunConfig) -> torch.dtype | None:
    """The lower precision of mixed precision on the planned device; None for float32."""
    import torch

    on_device = torch.cuda.is_available() or config.device_memory_gb is not None
    auto = "bf16" if on_device else "fp32"
    name = auto if config.precision == "auto" else config.precision
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[name]


def settle_batch_size(
    config: RunConfig, work: Workload, found: list[Finding]
) -> tuple[RunConfig, Workload]:
    """Replace batch_size=auto by the largest micro-batch that fits.

    It divides the effective batch size, which stays the same.
    """
    limit = find_limit(config.max_memory_gb, config.device_memory_gb)
    effective = work.batches.batch_size
    try:
        work, _ = largest_batch(Trials(work, limit))
    except Exception as error:  # the model's own code may fail on the meta device in any way
        what = f"{type(error).__name__}: {error}"[:200]
        found.append(MEMORY_NOT_PREDICTED.finding(f"The batch size stays {effective}: {what}"))
    batches = work.batches
    chosen = {"batch_size": batches.batch_size, "grad_accum": batches.grad_accum}
    message = (
        f"batch_size is {batches.batch_size} and grad_accum {batches.grad_accum}: the largest "
        f"micro-batch that fits, at an effective batch size of {effective}."
    )
    found.append(BATCH_SIZE_CHOSEN.finding(message))
    return config.model_copy(update=chosen), work


def predict_fit(
    config: RunConfig, work: Workload, max_length: int | None, found: list[Finding]
) -> Fit:
    """Predict peak memory and time; if the run does not fit, find options that would."""
    limit = find_limit(config.max_memory_gb, config.device_memory_gb)
    fit = predict(work, limit)
    if fit.unknown:
        found.append(
            MEMORY_NOT_PREDICTED.finding(f"Memory and time are not predicted: {fit.unknown}")
        )
    if fit.fits is False:
        assert fit.peak_bytes is not None
        fit, refusal = refuse(fit, work, max_length, fit.peak_bytes)
        found.append(refusal)
    return fit


def refuse(fit: Fit, work: Workload, max_length: int | None, peak: int) -> tuple[Fit, Finding]:
    """The finding that a run does not fit, with the options that would."""
    over = max(peak, fit.limit.bytes + 1)
    options = [option.as_dict() for option in advise(work, fit.limit, max_length, over)]
    options.sort(key=lambda option: not option["fits"])  # stable: the least change first
    fit = replace(fit, advice=tuple(options))
    rows, length = work.batches.longest()
    message = (
        f"Peak memory is {show_gb(peak)} at the largest micro-batch ({rows} × {length}); the limit "
        f"is {fit.limit}."
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
