"""RunConfig to Plan: all stages in order.

Each stage takes values of the stages before it and returns what it made and what it found. This
file alone knows the whole config; a stage gets the settings it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from surefit.checks.class_names import BLANK_LABELS, check_classes
from surefit.checks.encoded_rows import (
    TOKEN_OUT_OF_VOCABULARY,
    check_ledger,
    check_rows,
    explain_loss,
)
from surefit.checks.file_names import check_file_names
from surefit.checks.input_values import check_stores, check_tables
from surefit.checks.label_scan import check_causal_labels
from surefit.checks.ledger import make_ledger
from surefit.checks.machine import check_machine, check_weights
from surefit.config import joint_parts
from surefit.data.cache import fingerprint, use_cache
from surefit.data.cache_contents import limit_cache
from surefit.data.cache_use import collect_damage
from surefit.data.formats.number_columns import without_text_columns
from surefit.data.further_columns import part_columns
from surefit.data.remote.remote_copy import reading_once
from surefit.data.table import Table
from surefit.encode.encoder import Encoder
from surefit.encode.features.feature_layout import Hints
from surefit.encode.store import Store
from surefit.encode.tally import remark_findings
from surefit.encode.text.templates import read_asked
from surefit.errors import FindingError
from surefit.findings import (
    check_accepted,
    has_errors,
    refuse_fixes,
)
from surefit.memory.limit import Limit, find_limit
from surefit.memory.process_memory import peak_bytes, reset_peak
from surefit.models.model_source import ModelSource, WeightLimits
from surefit.models.open_model import open_model
from surefit.models.parameter_patterns import freeze_parameters
from surefit.plan.audio_rows import plan_audio
from surefit.plan.augment_arrays import check_array_changes
from surefit.plan.augmentation import check_copies, make_copies
from surefit.plan.best_metric import choose_best_metric
from surefit.plan.build_model import Built, build_module, make_pipeline
from surefit.plan.choose_form import choose_form
from surefit.plan.class_loss_options import check_loss_options, settle_loss
from surefit.plan.evaluation_metrics import find_scorer, try_scorer
from surefit.plan.feature_rows import BatchBound, hints_by_labels, plan_features
from surefit.plan.garbage_collection import infrequent_collection
from surefit.plan.image_rows import plan_images
from surefit.plan.job_stages import settle_evaluation
from surefit.plan.live_data import check_stream, read_live
from surefit.plan.own_metrics import choose_metrics
from surefit.plan.plan import Plan
from surefit.plan.plan_in_progress import PlanInProgress
from surefit.plan.planned_precision import check_emulated
from surefit.plan.prepare_data import (
    choose_tokenizer,
    encode_split,
    fit_encoder,
    keep_limit,
    length_limit,
    num_positions,
    open_tables,
    overlong_policy,
)
from surefit.plan.several_inputs import further_inputs
from surefit.plan.split_data import SplitData, SplitSettings, split_tables
from surefit.plan.tree_figures import compare_with_trees
from surefit.plan.unread_columns import check_unread
from surefit.processes import is_first_on_host, num_processes
from surefit.progress import Progress, silent
from surefit.request import Request
from surefit.tasks.choose_task import choose_task, takes_class_files
from surefit.tasks.classes import BLANK_IS_NONE
from surefit.tasks.classes import SETTING as LABEL_SEPARATOR
from surefit.tasks.column_account import account_columns
from surefit.tasks.find_task import find_task
from surefit.tasks.source_forms import unify_forms
from surefit.tasks.step_classes import SETTING as STEP_LABELS
from surefit.tasks.task_spec import TaskSpec
from surefit.user_code import report_code

WHOLE_SHARE = 0.5
"""Share of a process's memory up to which it loads a model whole before the model is divided."""


def run_stages(request: Request, progress: Progress = silent, limit: Limit | None = None) -> Plan:
    """Open the data, choose task and columns, fit, encode, build the model, check it all."""
    config = request.config
    check_accepted(config.accept)
    reset_peak()
    planner = PlanInProgress(Plan(request, task=request.objects.task), progress, limit)
    with use_cache(config.cache), collect_damage() as damaged:
        try:
            with infrequent_collection(), reading_once(progress, config.cache_limit_gb):
                check_machine(config.precision, config.trackers)
                planner.note(check_emulated(config.precision, request.device))
                _run(planner)
                planner.plan = compare_with_trees(planner.plan, progress)
        except FindingError as error:
            planner.note(error.findings)
        planner.note(damaged)
        if config.cache_limit_gb is not None and is_first_on_host():
            planner.note(limit_cache(config.cache_limit_gb))
    plan = replace(planner.plan, planning_peak_bytes=peak_bytes())
    return plan if config.autofix else replace(plan, findings=refuse_fixes(plan.findings))


def _run(planner: PlanInProgress) -> None:
    """Files to a Job; the plan holds what was decided, wherever it stops."""
    config, objects, code = planner.request.config, planner.request.objects, planner.request.code
    wanted: TaskSpec | tuple[TaskSpec, ...] | None = objects.task
    if wanted is None and config.task is not None:
        wanted = find_task(config.task, code)
        planner.note(report_code("task", config.task))
    chosen, further = part_columns(config.columns)
    table, eval_table = planner.keep(
        open_tables(
            objects.data if objects.data is not None else list(config.data),
            objects.eval_data if objects.eval_data is not None else list(config.eval_data),
            config.read,
            config.on_bad_file,
            config.ignore,
            takes_class_files(wanted),
            chosen.values(),
        )
    )
    check_stream(table, eval_table, config)
    source = open_model(
        objects.model if objects.model is not None else config.model,
        from_scratch=config.from_scratch,
        trust_remote_code=config.trust_remote_code,
        quantize=config.lora.quantize,
        limits=_weight_limits(planner),
        code=code,
    )
    hints = source.hints()
    columns = choose_form(table, hints, wanted, chosen, config.split.by)
    task, roles = choose_task(table, wanted, columns, source.auto_classes)
    roles |= further_inputs(table, roles, hints.arguments, further)
    task = planner.keep(choose_metrics(config.metrics, objects.metrics, code, task))
    findings = without_text_columns(planner.plan.findings, roles, task.whole_rows)
    planner.plan = replace(planner.plan, task=task, roles=roles, findings=tuple(findings))
    check_loss_options(config.loss, task, objects.loss_fn)
    names = [*table.columns, *config.ignore, *(eval_table.columns if eval_table else ())]
    forms = planner.keep(unify_forms(table, eval_table, task, roles, chosen))
    table, eval_table, roles = forms.table, forms.eval_table, dict(forms.roles)
    _account(planner, names, Encoder(task.name, roles), forms.read_as)
    planner.note(check_file_names(table, roles))
    if has_errors(planner.plan.findings):
        return
    kept_where = planner.keep(check_unread(table, planner.plan, config.columns))
    metric = config.early_stopping.metric
    scorer = planner.keep(find_scorer(config.generate.scorer, objects.scorer, code, task, metric))
    check_array_changes(config, task, roles)
    copies = planner.keep(make_copies(task, roles, planner.request))
    source = replace(source, image=source.image or dict(hints.image or {}))
    layout = _plan_features(planner, table, task, roles, source, hints)
    data = planner.keep(
        split_tables(
            table,
            eval_table,
            task,
            roles,
            SplitSettings(
                config.eval_share,
                config.seed,
                config.scan,
                config.split.by,
                config.split.stratify,
                config.split.folds,
                config.split.fold,
            ),
        )
    )
    encoder = _make_encoder(planner, data, task, roles, source, layout, hints)
    planner.note(check_classes(encoder, data.table))
    sides = (data.table, data.train), (data.validation_table, data.validation)
    planner.note(check_tables(sides, task, encoder))
    task = planner.keep(choose_best_metric(task, encoder, metric))
    if kept_where is not None:
        encoder = replace(encoder, settings={**encoder.settings, "kept_where": kept_where})
    built = _build(planner, source, task, encoder, data.table)
    _account(planner, names, built.pipeline.encoder, forms.read_as)
    train, validation = planner.keep(encode_split(built.pipeline, data, copies, planner.progress))
    planner.note(check_copies(train, copies))
    _check_encoded(planner, data, built, train, validation)
    if has_errors(planner.plan.findings) or planner.request.encodes_only:
        return
    pipeline = settle_loss(built.pipeline, config.loss, train)
    pipeline = read_live(pipeline, data, train, validation, copies)
    task = try_scorer(scorer, task, validation, pipeline.encoder)
    built = replace(built, pipeline=replace(pipeline, task=task))
    settle_evaluation(planner, built, train, validation)


def _account(
    planner: PlanInProgress, names: Iterable[str], encoder: Encoder, read_as: Mapping[str, str]
) -> None:
    """Note the role of every column; `read_as` has those of files in another form."""
    assert planner.plan.task is not None
    read = account_columns([*dict.fromkeys(names)], planner.plan.task, encoder)
    columns = {c: role for name, role in read.items() for c in joint_parts(name) or [name]}
    other = {name: role for name, role in read_as.items() if columns.get(name) is None}
    by = planner.request.config.split.by
    grouped = {} if by is None or by in encoder.roles.values() else {by: "split.by"}
    planner.plan = replace(
        planner.plan, roles=encoder.roles, columns={**columns, **other, **grouped}
    )


def _plan_features(
    planner: PlanInProgress,
    table: Table,
    task: TaskSpec,
    roles: Mapping[str, str],
    source: ModelSource,
    hints: Hints,
) -> dict[str, Any] | None:
    config = planner.request.config
    head = task.head_for(Encoder(task.name, roles))
    bound = None
    if isinstance(config.batch_size, int):  # else it is chosen to fit
        limits = [config.max_seq_length, config.max_tokens]
        limits += [] if source.follows_rows else [source.max_positions]
        longest = min((limit for limit in limits if limit is not None), default=None)
        bound = BatchBound(
            min(config.batch_size, table.num_rows),
            longest,
            config.max_tokens,
            config.max_memory_gb,
            config.device_memory_gb,
        )
    hints = replace(hints, steps=config.features.steps, width=config.features.width)
    if head is None or head.body != "rows":  # the task reads sequences
        hints = replace(hints, reads_vectors=None)
    if task.step_labels:
        hints = hints_by_labels(table, roles, hints, config.features.labels)
    return planner.keep(plan_features(table, roles, hints, bound))


def _make_encoder(
    planner: PlanInProgress,
    data: SplitData,
    task: TaskSpec,
    roles: Mapping[str, str],
    source: ModelSource,
    layout: dict[str, Any] | None,
    hints: Hints,
) -> Encoder:
    config, tokenizer = planner.request.config, None
    reads_tokens = "input_ids" in task.fields_for(Encoder(task.name, roles))
    if reads_tokens:
        name = config.tokenizer or source.tokenizer
        trusted = planner.request.code.allows_remote(name or "", config.trust_remote_code)
        tokenizer = planner.keep(choose_tokenizer(data, task, roles, source, name, trusted))
    positions = source.max_positions if reads_tokens else None
    audio = planner.keep(plan_audio(data.table, data.train, roles, source.audio, config.audio))
    image = config.image
    images = plan_images(data.table, roles, hints, image.channels, image.size)
    encoder = Encoder(
        task.name,
        roles,
        tokenizer=tokenizer,
        whole_rows=task.whole_rows,
        max_length=length_limit(config.max_seq_length, config.max_tokens, positions, reads_tokens),
        settings={
            "overlong": overlong_policy(config.overlong, task, data.table),
            "loss_on": config.loss_on,
            "template": read_asked(config.template),
            "decoder_start": source.decoder_start,
            "features.layout": layout,
            STEP_LABELS: config.features.labels,
            "seed": config.seed,
            "table.max_categories": config.table.max_categories,
            "image.size": image.size,
            "image.model": source.image,
            "image.format": image.asked(),
            "audio": audio,
            **images,
            "on_bad_file": config.on_bad_file,
            LABEL_SEPARATOR: config.label_separator,
            BLANK_IS_NONE: BLANK_LABELS.code in config.accept,
        },
    )
    encoder = planner.keep(fit_encoder(encoder, data, task, source, config.max_seq_length))
    keep_limit(encoder, task)
    return encoder


def _weight_limits(planner: PlanInProgress) -> WeightLimits:
    """What one process loads: all that host memory holds, half of it where it does not train."""
    config, request = planner.request.config, planner.request
    limit = planner.limit or find_limit(config.max_memory_gb, config.device_memory_gb)
    host = find_limit(config.max_memory_gb, host=True).bytes
    is_divided = config.parallel == "fsdp" and (request.processes or num_processes()) > 1
    divided = int(WHOLE_SHARE * min(limit.bytes, host)) if is_divided else None
    if config.device_memory_gb is not None:  # planned for another device
        return WeightLimits(divided, int(WHOLE_SHARE * host))
    # Onto a device of this machine, weights may be read in fewer bytes.
    return WeightLimits(divided, None if limit.on_device else host)


def _build(
    planner: PlanInProgress, source: ModelSource, task: TaskSpec, encoder: Encoder, table: Table
) -> Built:
    config, objects = planner.request.config, planner.request.objects
    planner.progress("building the model", 0, 1)
    module, adaptation = planner.keep(
        build_module(
            source,
            task.head_for(encoder),
            encoder,
            config.lora,
            config.checkpointing,
            config.seed,
        )
    )
    check_weights(module)
    freeze_parameters(module, config.freeze, adaptation is not None)
    planner.progress("building the model", 1, 1)
    pipeline = planner.keep(
        make_pipeline(
            module, task, encoder, table, config.seed, objects.loss_fn, objects.collate_fn
        )
    )
    return Built(pipeline, source, table, adaptation)


def _check_encoded(
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
