"""RunConfig to Plan: all stages in order.

Each stage takes values of the stages before it and returns what it made and what it found. This
file alone knows the whole config; a stage gets the settings it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from surefit.checks.class_names import BLANK_LABELS, check_classes
from surefit.checks.file_names import check_file_names
from surefit.checks.input_values import check_tables
from surefit.checks.machine import check_machine, check_weights
from surefit.config import joint_parts
from surefit.data.cache import collect_damage, use_cache
from surefit.data.cache_contents import limit_cache
from surefit.data.extra_columns import part_columns
from surefit.data.formats.number_columns import without_text_columns
from surefit.data.formats.numpy_files import as_stored
from surefit.data.missing_values import find_missing
from surefit.data.remote.remote_copy import reading_once
from surefit.data.roles import extra_fields
from surefit.data.row_arrays import row_shape
from surefit.data.table import Table
from surefit.encode.augment.augmented_copies import AugmentedCopies
from surefit.encode.encoder import Encoder
from surefit.encode.features.feature_layout import Hints
from surefit.encode.text.template_rendering import read_asked
from surefit.errors import FindingError
from surefit.findings import check_accepted, has_errors, refuse_fixes
from surefit.forked_map import limit_children
from surefit.inspection.row_view import RowReading
from surefit.memory.limit import Limit, find_limit, free_for_children
from surefit.memory.process_memory import watch_peak
from surefit.models.model_source import ModelSource, WeightLimits
from surefit.models.open_model import NO_LIMITS, open_model
from surefit.models.optimizer import freeze_parameters
from surefit.pipeline.pipeline import batch_columns
from surefit.plan.audio_rows import plan_audio
from surefit.plan.augmentation import (
    asks_change,
    check_array_changes,
    check_copies,
    make_array_augment,
    make_copies,
)
from surefit.plan.build_model import Built, ask_output, build_module, make_pipeline
from surefit.plan.choose_form import choose_form, further_inputs
from surefit.plan.class_loss_options import check_loss_options, settle_loss
from surefit.plan.garbage_collection import infrequent_collection
from surefit.plan.input_rows import BatchBound, hints_by_labels, plan_features, plan_images
from surefit.plan.job_stages import check_encoded, compare_with_trees, settle_evaluation
from surefit.plan.metrics import choose_best_metric, choose_metrics, find_scorer, try_scorer
from surefit.plan.plan import Plan, PlanInProgress, check_emulated
from surefit.plan.prepare_data import (
    check_stream,
    check_unread,
    choose_tokenizer,
    encode_split,
    fit_encoder,
    keep_limit,
    length_limit,
    open_tables,
    overlong_policy,
    read_live,
)
from surefit.plan.split_data import SplitData, SplitSettings, split_tables
from surefit.processes import is_first_on_host, num_processes
from surefit.progress import Progress, silent
from surefit.request import Request
from surefit.tasks import custom, feature_pretraining
from surefit.tasks.choose_task import choose_task, find_task, takes_class_files
from surefit.tasks.classes import BLANK_IS_NONE
from surefit.tasks.classes import SETTING as LABEL_SEPARATOR
from surefit.tasks.numeric_columns import account_columns
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
    planner = PlanInProgress(Plan(request, task=request.objects.task), progress, limit)
    with use_cache(config.cache), collect_damage() as damaged, watch_peak() as peak_bytes:
        try:
            with (
                infrequent_collection(),
                reading_once(progress, config.cache_limit_gb),
                limit_children(partial(free_for_children, config.max_memory_gb)),
            ):
                check_machine(config.precision, config.trackers)
                planner.note(check_emulated(config.precision, request.device))
                _run(planner)
                compare_with_trees(planner)
        except FindingError as error:
            planner.note(error.findings)
        planner.note(damaged)
        if config.cache_limit_gb is not None and is_first_on_host():
            planner.note(limit_cache(config.cache_limit_gb))
        plan = replace(planner.plan, planning_peak_bytes=peak_bytes())
    return plan if config.autofix else replace(plan, findings=refuse_fixes(plan.findings))


Wanted = TaskSpec | tuple[TaskSpec, ...] | None


@dataclass(frozen=True)
class Read:
    """How rows are read: the first half of a plan, for which the model is not built."""

    data: SplitData
    source: ModelSource
    encoder: Encoder
    copies: AugmentedCopies | None
    scorer: Any
    names: Sequence[str]
    read_as: Mapping[str, str]


def read_for_row(request: Request, progress: Progress = silent) -> RowReading:
    """How one row is read for the model; no weights are loaded where its columns are known."""
    request = replace(request, one_row=True)
    planner = PlanInProgress(Plan(request, task=request.objects.task), progress, None)
    config = request.config
    with use_cache(config.cache), reading_once(progress, config.cache_limit_gb):
        read = _read(planner)
        if read is None:
            errors = [found for found in planner.plan.findings if found.severity == "error"]
            raise FindingError(*errors)
        task, data, encoder = planner.plan.task, read.data, read.encoder
        assert task is not None
        section = task.arrays(encoder.roles)
        if section is not None and asks_change(config, request.objects.augment, section):
            built = _build(planner, read.source, task, encoder, data.table)
            train, _ = planner.keep(encode_split(built.pipeline, data, read.copies, progress))
            augment = planner.keep(make_array_augment(request, built.pipeline, train))
            return RowReading(task, built.pipeline.encoder, data.train, data.validation, augment)
        taken = {*batch_columns(task.fields_for(encoder)), *encoder.roles.values()}
        extras = extra_fields(data.table, taken)
        if encoder.further or read.source.may_read(task.head_for(encoder), extras):
            encoder = _build(planner, read.source, task, encoder, data.table).pipeline.encoder
        return RowReading(task, encoder, data.train, data.validation)


def _run(planner: PlanInProgress) -> None:
    """Files to a Job; the plan holds what was decided, wherever it stops."""
    read = _read(planner)
    if read is None:
        return
    config, task, data, encoder = planner.request.config, planner.plan.task, read.data, read.encoder
    assert task is not None
    planner.note(check_classes(encoder, data.table))
    sides = (data.table, data.train), (data.validation_table, data.validation)
    planner.note(check_tables(sides, task, encoder))
    task = planner.keep(choose_best_metric(task, encoder, config.early_stopping.metric))
    built = _build(planner, read.source, task, encoder, data.table)
    _account(planner, read.names, built.pipeline.encoder, read.read_as)
    copies = read.copies
    train, validation = planner.keep(encode_split(built.pipeline, data, copies, planner.progress))
    planner.note(check_copies(train, copies))
    check_encoded(planner, data, built, train, validation)
    if has_errors(planner.plan.findings) or planner.request.encodes_only:
        return
    pipeline = settle_loss(ask_output(built.pipeline, config.outputs), config.loss, train)
    pipeline = read_live(pipeline, data, train, validation, copies)
    task = try_scorer(read.scorer, task, validation, pipeline.encoder)
    built = replace(built, pipeline=replace(pipeline, task=task))
    settle_evaluation(planner, built, train, validation)


def _read(planner: PlanInProgress) -> Read | None:
    """Open the data, choose task and columns, split the rows, fit the Encoder; None for errors."""
    config, objects, code = planner.request.config, planner.request.objects, planner.request.code
    wanted: Wanted = objects.task
    if wanted is None and config.task is not None:
        wanted = find_task(config.task, code)
        planner.note(report_code("task", config.task))
    chosen, further = part_columns(config.columns)
    opening = partial(
        open_tables,
        objects.data if objects.data is not None else list(config.data),
        objects.eval_data if objects.eval_data is not None else list(config.eval_data),
        config.read,
        config.on_bad_file,
        config.ignore,
        takes_class_files(wanted),
        chosen.values(),
    )
    with as_stored(wanted is custom.SPEC or _may_be_own(planner, wanted)) as kept:
        table, eval_table = planner.keep(opening())
    check_stream(table, eval_table, config)
    source = open_model(
        objects.model if objects.model is not None else config.model,
        from_scratch=config.from_scratch,
        trust_remote_code=config.trust_remote_code,
        quantize=config.lora.quantize,
        limits=NO_LIMITS if planner.request.one_row else _weight_limits(planner),
        code=code,
    )
    hints = source.hints()
    if kept and wanted is None and not _is_own(planner, table, wanted, hints):
        (table, eval_table), _ = opening()
    task, roles = _choose_task(planner, table, wanted, chosen, source, hints)
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
        return None
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
                reports=not planner.request.one_row,
            ),
        )
    )
    encoder = _make_encoder(planner, data, task, roles, source, layout, hints)
    if kept_where is not None:
        encoder = replace(encoder, settings={**encoder.settings, "kept_where": kept_where})
    return Read(data, source, encoder, copies, scorer, names, forms.read_as)


def _choose_task(
    planner: PlanInProgress,
    table: Table,
    wanted: Wanted,
    chosen: Mapping[str, str],
    source: ModelSource,
    hints: Hints,
) -> tuple[TaskSpec, dict[str, str]]:
    """The task and its roles; with a `loss_fn`, a module may read all columns as they are."""
    config, loss_fn = planner.request.config, planner.request.objects.loss_fn
    read, may_be_own = _ungrouped(planner, table), _may_be_own(planner, wanted)
    if _is_own(planner, table, wanted, hints):
        wanted = custom.SPEC
    columns = choose_form(table, hints, wanted, chosen, config.split.by)
    try:
        task, roles = choose_task(table, wanted, columns, source.auto_classes)
    except FindingError:
        if may_be_own and custom.has_numbers(read):
            custom.check_call(read, hints.required)
        raise
    if task.own_fields is not None:
        custom.require_loss_fn(task, loss_fn)
        custom.check_call(read, hints.required)
    return task, roles


def _may_be_own(planner: PlanInProgress, wanted: Wanted) -> bool:
    request = planner.request
    return wanted is None and request.objects.loss_fn is not None and not request.config.columns


def _is_own(planner: PlanInProgress, table: Table, wanted: Wanted, hints: Hints) -> bool:
    """Whether the task is `custom`, though nobody names it."""
    read = _ungrouped(planner, table)
    return _may_be_own(planner, wanted) and custom.suits(read, hints.required, hints.arguments)


def _ungrouped(planner: PlanInProgress, table: Table) -> Table:
    by = planner.request.config.split.by
    return table.without([name for name in table.columns if name == by])


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
    is_named = config.task is not None or planner.request.objects.task is not None
    masks = task.name == feature_pretraining.SPEC.name and not is_named
    if masks and hints.required is not None and hints.steps is None and hints.width is None:
        feature_pretraining.check_inferred(table, roles, None)  # a module that reads vectors
    layout = planner.keep(plan_features(table, roles, hints, bound))
    if masks:
        planner.note(feature_pretraining.check_inferred(table, roles, layout))
    return layout


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
    own = planner.keep(task.own_fields(data.table)) if task.own_fields is not None else {}
    missing = planner.keep(find_missing(data.table, roles, task.whole_rows, config.read))
    encoder = Encoder(
        task.name,
        roles,
        tokenizer=tokenizer,
        whole_rows=task.whole_rows,
        extras=own,
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
            **missing,
            "on_bad_file": config.on_bad_file,
            **_largest_id(data.table, roles),
            LABEL_SEPARATOR: config.label_separator,
            BLANK_IS_NONE: BLANK_LABELS.code in config.accept,
        },
    )
    encoder = planner.keep(fit_encoder(encoder, data, task, source, config.max_seq_length))
    keep_limit(encoder, task)
    return encoder


def _largest_id(table: Table, roles: Mapping[str, str]) -> dict[str, int]:
    """The largest token id of labelled rows of ids: an untrained model is made to have it."""
    is_labelled = {"input_ids", "label"} <= {*roles}
    held = row_shape(table, roles["input_ids"]).value_range if is_labelled else None
    return {} if held is None else {"largest_id": held[1]}


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
