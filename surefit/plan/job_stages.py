"""The later stages of planning: from the built model and encoded rows to the Job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from surefit.checks.batch_padding import check_padding
from surefit.checks.module_checks import (
    check_batch_norm,
    check_optimizer,
    check_registered,
    check_trainable,
)
from surefit.encode.store import Store
from surefit.findings import (
    has_errors,
)
from surefit.memory.limit import find_limit
from surefit.models.parameter_patterns import check_rates
from surefit.pipeline.job import Job
from surefit.pipeline.open_pipeline import apply_choices
from surefit.plan.augment_arrays import make_array_augment
from surefit.plan.build_model import Built, match_collated
from surefit.plan.choices import choose_compiling, choose_layout
from surefit.plan.choose_frozen import choose_frozen
from surefit.plan.choose_parallel import KEY as PARALLEL
from surefit.plan.choose_parallel import choose_parallel
from surefit.plan.choose_windows import check_shares, choose_order_windows
from surefit.plan.evaluation_metrics import check_watched
from surefit.plan.fit_in_memory import (
    autocast_dtype,
    generation_size,
    make_batches,
    plans_gpu,
    predict_fit,
    settle_batch_size,
)
from surefit.plan.generation_settings import settle_generation
from surefit.plan.live_data import run_length
from surefit.plan.own_metrics import try_metrics
from surefit.plan.plan import ModelChoice
from surefit.plan.plan_in_progress import PlanInProgress
from surefit.plan.probe_model import (
    choose_loss_terms,
    choose_row_groups,
    choose_step_scores,
    freeze_unreached,
    keeps_loss_terms,
    perturbed_pipeline,
    probe_device_code,
    probe_first_batch,
    probe_model,
)
from surefit.plan.rate_test import Rates, check_rate

OWN_CHOICES = ("auxiliary_loss", "row_groups")
"""Choices that are not about the head and the layout."""


def settle_evaluation(
    planner: PlanInProgress, built: Built, train: Store, validation: Store
) -> None:
    """Baselines, metrics and generation, and then the Job."""
    config, pipeline = planner.request.config, built.pipeline
    task, encoder = pipeline.task, pipeline.encoder
    if task.baselines is not None:
        planner.plan = replace(planner.plan, baselines=task.baselines(train, validation, encoder))
    metric = config.early_stopping.metric
    check_watched(metric, config.generate.rows, pipeline, built.source.name)
    pipeline = planner.keep(settle_generation(pipeline, config.generate))
    planner.plan = replace(planner.plan, task=task)
    kept_bytes = planner.keep(try_metrics(task, validation, encoder, metric))
    _make_job(planner, replace(built, pipeline=pipeline), train, validation, kept_bytes)


def _make_job(
    planner: PlanInProgress, built: Built, train: Store, validation: Store, kept_bytes: int
) -> None:
    """Batches, the checks of the model on them, and the plan with its Job."""
    config, request = planner.request.config, planner.request
    built = replace(built, pipeline=planner.keep(match_collated(built.pipeline, train)))
    augment = planner.keep(make_array_augment(request, built.pipeline, train))
    batches = make_batches(
        train.lengths,
        config.seed,
        config.batch_size,
        config.grad_accum,
        config.max_tokens,
        config.order,
        request.processes,
    )
    windows, sizes = planner.keep(choose_order_windows(train.lengths, request.choices))
    batches = replace(batches, windows=windows)
    module = built.pipeline.module
    planner.note(check_batch_norm(module, batches, config.epochs))
    planner.note(check_trainable(module))
    planner.note(check_registered(module))
    check_optimizer(module, request.objects.optimizer)
    check_rates(module, config.lr_by, request.objects.optimizer)
    if has_errors(planner.plan.findings):
        return
    choices: dict[str, Any] = {}
    if not built.source.weightless:
        built, choices = _probe(planner, built, train, validation)
    pipeline = built.pipeline
    batches = replace(batches, padding_free=pipeline.layout.padding_free)
    if not built.source.weightless:
        choices |= planner.keep(choose_parallel(pipeline, train, batches, config, request.choices))
    if config.batch_size != "auto":
        planner.note(check_padding(batches))
    job = Job(
        pipeline,
        train,
        validation,
        batches,
        *run_length(pipeline, batches, config),
        config.eval_every,
        generation_size(pipeline, config.generate, len(validation)),
        autocast_dtype(config.precision, config.device_memory_gb, request.device),
        kept_bytes,
        augment,
        config.parallel,
        bool(choices.get(PARALLEL, {}).get("whole")),
    )
    job, frozen = choose_frozen(job, built.source, request.choices)
    job = _fit_in_memory(planner, job)
    planner.note(check_shares(job.batches))
    choices |= {**frozen, **({"order_windows": sizes} if sizes else {})}
    earlier = {**request.choices, **choices}
    choices |= planner.keep(
        choose_compiling(module, job.num_steps, config.compile, pipeline.layout, earlier)
    )
    model = ModelChoice(built.source, config.lr or built.default_lr, built.adaptation)
    if not built.source.weightless and not request.choices:
        _try_rate(planner, job, model.lr, built.default_lr)
    planner.plan = replace(planner.plan, job=job, model=model, choices=choices)


def _try_rate(planner: PlanInProgress, job: Job, lr: float, default: float) -> None:
    """A few steps at the peak learning rate, restored afterwards."""
    config, fit = planner.request.config, planner.plan.fit
    if fit is None or has_errors(planner.plan.findings):
        return
    optimizer = planner.request.objects.optimizer
    rates = Rates(lr, config.weight_decay, config.clip, optimizer, default, config.lr_by)
    known = [b["loss"] for b in planner.plan.baselines.values() if "loss" in b]
    fit = planner.keep(check_rate(job, fit, rates, max(known, default=None)))
    planner.plan = replace(planner.plan, fit=fit)


def _probe(
    planner: PlanInProgress, built: Built, train: Store, validation: Store
) -> tuple[Built, dict[str, Any]]:
    """Try the model on a few rows: what is wrong with it, and which layout it allows."""
    config, earlier = planner.request.config, planner.request.choices
    own_loss_fn = planner.request.objects.loss_fn is not None
    scores = {name: earlier[name] for name in ("step_scores",) if name in earlier}
    if not earlier:
        scores = planner.keep(choose_step_scores(built.pipeline, train, config.features.stride))
    if scores:
        built = replace(built, pipeline=apply_choices(built.pipeline, scores))
    planner.note(probe_first_batch(built, train))
    dtype = autocast_dtype(config.precision, config.device_memory_gb, planner.request.device)
    if not earlier and plans_gpu(config.device_memory_gb):
        planner.note(probe_device_code(built, train, dtype))
    with perturbed_pipeline(built, train) as probed:
        planner.note(probe_model(built, probed, train, longer=config.probes == "all"))
        built = planner.keep(freeze_unreached(built, train))
        choices = {name: earlier[name] for name in OWN_CHOICES if name in earlier}
        if not earlier:
            generates = config.generate.rows > 0 and len(validation) > 0
            choices = planner.keep(choose_row_groups(probed, train, generates))
        choices |= scores
        if own_loss_fn:
            choices |= {"rows": "padded", "rows_reason": "loss_fn computes the loss"}
            return replace(built, pipeline=apply_choices(built.pipeline, choices)), choices
        if not earlier:
            choices |= planner.keep(choose_loss_terms(probed, train))
        plain = apply_choices(probed, choices)
        longest = max(int(store.lengths.max()) for store in (train, validation) if len(store))
        may_join = config.padding_free != "off" and config.compile != "on"
        chosen, layout = planner.keep(
            choose_layout(plain, train, longest, may_join, earlier, dtype)
        )
        unproved = not earlier and "auxiliary_loss" in choices
        if unproved and not keeps_loss_terms(plain, chosen, train):
            reason = "the model's auxiliary loss differs in padding-free batches"
            chosen, layout = plain, {"head": {"positions": "all"}, "rows": "padded"}
            layout["rows_reason"] = reason
    choices |= layout
    if chosen.module is not built.pipeline.module:  # chosen on the copy
        chosen = apply_choices(built.pipeline, choices)
    return replace(built, pipeline=chosen), choices


def _fit_in_memory(planner: PlanInProgress, job: Job) -> Job:
    """Predict peak and time; settle the batch size if it is to be chosen."""
    config = planner.request.config
    planner.progress("predicting memory", 0, 1)
    limit = planner.limit or find_limit(config.max_memory_gb, config.device_memory_gb)
    limit = limit.shared_by(planner.request.processes or 1)
    if config.batch_size == "auto":
        job = planner.keep(settle_batch_size(job, limit))
        sizes = {"batch_size": job.batches.batch_size, "grad_accum": job.batches.grad_accum}
        settled = replace(planner.request, config=config.model_copy(update=sizes))
        planner.plan = replace(planner.plan, request=settled)
        planner.note(check_batch_norm(job.pipeline.module, job.batches, config.epochs))
    fit = planner.keep(predict_fit(job, limit))
    planner.plan = replace(planner.plan, fit=fit)
    planner.progress("predicting memory", 1, 1)
    return job
