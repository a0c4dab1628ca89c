"""The later stages of planning: from the built model and encoded rows to the Job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from surefit.checks.encoded_rows import (
    TOKEN_OUT_OF_VOCABULARY,
    check_ledger,
    check_lookups,
    check_rows,
    explain_loss,
)
from surefit.checks.input_values import check_stores
from surefit.checks.label_scan import check_causal_labels
from surefit.checks.ledger import make_ledger
from surefit.checks.module_checks import (
    check_optimizer,
    check_padding,
    check_registered,
    check_single_rows,
    check_trainable,
    find_min_rows,
)
from surefit.data.cache import fingerprint
from surefit.encode.store import Store
from surefit.encode.tally import remark_findings
from surefit.findings import has_errors
from surefit.memory.limit import find_limit
from surefit.models.optimizer import check_rates
from surefit.pipeline.open_pipeline import apply_choices
from surefit.pipeline.pipeline import Job
from surefit.plan.augmentation import make_array_augment
from surefit.plan.build_model import Built, match_collated
from surefit.plan.choose_parallel import KEY as PARALLEL
from surefit.plan.choose_parallel import choose_parallel
from surefit.plan.fit_in_memory import (
    autocast_dtype,
    generation_size,
    make_batches,
    predict_fit,
    settle_batch_size,
)
from surefit.plan.generation_settings import settle_generation
from surefit.plan.layout import (
    BLOCK_ROWS,
    check_shares,
    choose_block_rows,
    choose_compiling,
    choose_frozen,
    choose_layout,
)
from surefit.plan.metrics import check_watched, try_metrics
from surefit.plan.plan import ModelChoice, PlanInProgress
from surefit.plan.prepare_data import num_positions, run_length
from surefit.plan.probe_model import (
    choose_loss_terms,
    choose_row_groups,
    choose_step_scores,
    freeze_unreached,
    keeps_loss_terms,
    perturbed_pipeline,
    probe_first_batch,
    probe_model,
    probe_training_device,
)
from surefit.plan.probe_targets import choose_target_use, probe_targets
from surefit.plan.rate_test import Rates, check_rate
from surefit.plan.split_data import SplitData
from surefit.tasks.tree_baseline import TREES, measure_trees

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
    blocks = choose_block_rows(train, request.choices)
    module, shortest = built.pipeline.module, [int(train.lengths.argmin())]
    one_row = lambda: built.pipeline.outputs(built.pipeline.batch(train, shortest))  # noqa: E731
    min_rows, layer = find_min_rows(module, None if built.source.weightless else one_row)
    batches = replace(batches, block_rows=blocks.get(BLOCK_ROWS, 1), min_rows=min_rows)
    planner.note(check_single_rows(batches, config.epochs, layer))
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
    choices |= {**frozen, **blocks}
    earlier = {**request.choices, **choices}
    choices |= choose_compiling(module, job.num_steps, config.compile, pipeline.layout, earlier)
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
    outputs = planner.keep(probe_first_batch(built, train))
    targets = {name: earlier[name] for name in ("targets",) if name in earlier}
    if not earlier:
        targets = planner.keep(choose_target_use(built, train))
    built = replace(built, pipeline=apply_choices(built.pipeline, {**scores, **targets}))
    dtype = autocast_dtype(config.precision, config.device_memory_gb, planner.request.device)
    if not earlier and config.device_memory_gb is None:
        planner.note(probe_training_device(built, train, dtype))
    with perturbed_pipeline(built, train) as probed:
        planner.note(probe_targets(probed, train))
        longer = config.probes == "all"
        planner.note(probe_model(built, probed, train, longer, longer or config.rehearse))
        built = planner.keep(freeze_unreached(built, train))
        choices = {name: earlier[name] for name in OWN_CHOICES if name in earlier}
        if not earlier:
            generates = config.generate.rows > 0 and len(validation) > 0
            choices = planner.keep(choose_row_groups(probed, train, generates))
        choices |= {**scores, **targets, **outputs}
        if own_loss_fn:
            choices |= {"rows": "padded", "rows_reason": "loss_fn computes the loss"}
            return replace(built, pipeline=apply_choices(built.pipeline, choices)), choices
        if not earlier:
            choices |= planner.keep(choose_loss_terms(probed, train))
        plain = apply_choices(probed, choices)
        if "auxiliary_loss" in choices:  # for which the model is called with labels
            planner.note(probe_targets(plain, train))
        longest = max(int(store.lengths.max()) for store in (train, validation) if len(store))
        may_join = config.padding_free != "off" and config.compile != "on"
        chosen, layout = choose_layout(plain, train, longest, may_join, earlier, dtype)
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
        layer = find_min_rows(job.pipeline.module, None)[1]
        planner.note(check_single_rows(job.batches, config.epochs, layer))
    fit = planner.keep(predict_fit(job, limit))
    planner.plan = replace(planner.plan, fit=fit)
    planner.progress("predicting memory", 1, 1)
    return job


def check_encoded(
    planner: PlanInProgress, data: SplitData, built: Built, train: Store, validation: Store
) -> None:
    """Account for every row, and hold the encoded ones against the model."""
    ledger = make_ledger(train, validation)
    key = fingerprint(train.key, validation.key)
    planner.plan = replace(planner.plan, ledger=ledger, data_key=key)
    both = ((train, data.table), (validation, data.validation_table))
    sides = [
        (table, store.notes, len(rows))
        for (store, table), rows in zip(both, (data.train, data.validation), strict=True)
    ]
    remarks = remark_findings(sides, built.pipeline.encoder)
    lost = check_ledger(ledger, both, planner.request.config.max_dropped_share)
    planner.note(explain_loss(remarks, lost))
    pipeline = built.pipeline
    positions = num_positions(pipeline.task, built.source, pipeline.encoder)
    for store, table in both:
        planner.note(check_rows(store, table, pipeline.vocab_size, positions))
        planner.note(check_lookups(pipeline, store, table))
    planner.note(check_stores(both, train.fields, pipeline.encoder))
    head = pipeline.task.head_for(pipeline.encoder)
    ids_known = all(f.code != TOKEN_OUT_OF_VOCABULARY.code for f in planner.plan.findings)
    if head is not None and head.predicts == "next_token" and ids_known:
        labelled = [
            (store, table, rows)
            for (store, table), rows in zip(both, (data.train, data.validation), strict=True)
        ]
        trained = None if built.source.untrained else pipeline.module
        planner.note(check_causal_labels(labelled, pipeline.encoder, trained))


def compare_with_trees(planner: PlanInProgress) -> None:
    """Fit trees to a table; a resumed run has the figures it was begun with."""
    plan, config = planner.plan, planner.request.config
    if plan.job is None or plan.task is None or plan.task.judge is None or not config.table.trees:
        return
    if has_errors(plan.findings) or plan.request.choices:
        return
    planner.progress("fitting trees to compare with", 0, 1)
    job = plan.job
    figures = measure_trees(job.train, job.validation, job.pipeline.encoder, plan.task.judge)
    planner.progress("fitting trees to compare with", 1, 1)
    if figures:
        planner.plan = replace(plan, baselines={**plan.baselines, TREES: figures})
