"""The planner's table: every stage from RunConfig to Plan, in order, and the functions that run it.

What a stage calls takes the settings it needs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from surefit.checks import module_checks
from surefit.checks.class_values import check_classes
from surefit.checks.column_rules import check_tables
from surefit.checks.ledger import make_ledger
from surefit.checks.machine import check_emulated, check_machine
from surefit.data.cache import collect_damage, use_cache
from surefit.data.cache_contents import limit_cache
from surefit.data.remote_data import reading_once
from surefit.data.roles import extra_fields
from surefit.errors import FindingError
from surefit.findings import check_accepted, refuse_fixes
from surefit.forked_map import limit_children
from surefit.inputs.encoder import Encoder
from surefit.inputs.file_names import check_file_names
from surefit.inspection.row_view import RowReading
from surefit.memory.limit import Limit, free_for_children
from surefit.memory.process_memory import infrequent_collection
from surefit.pipeline.open_pipeline import Choices
from surefit.pipeline.pipeline import batch_columns
from surefit.plan import (
    augmentation,
    build_model,
    fit_encoder,
    layout,
    metrics,
    prepare_data,
    probe_model,
    rate_test,
    settle_job,
    settle_step,
)
from surefit.plan.choose_parallel import check_divided, choose_parallel
from surefit.plan.class_loss_options import check_loss_options
from surefit.plan.draft import Choice, Draft, Kept, Row, Stage, run
from surefit.plan.fit_in_memory import predict_fit, settle_batch_size, trace_largest
from surefit.plan.generation_settings import settle_generation
from surefit.plan.named_sets import encode_named, rows_key
from surefit.plan.plan import ModelChoice, Plan
from surefit.plan.probe_targets import choose_target_use, probe_targets
from surefit.plan.proof import StaleProofError, confirm_proof, find_proof, write_proof
from surefit.plan.settle_job import is_called, is_divided, is_shared
from surefit.plan.settle_step import has_step
from surefit.plan.split_data import split_tables
from surefit.processes import is_first_on_host
from surefit.progress import Progress, silent
from surefit.request import Request

READING = (
    Stage("task", prepare_data.find_own_loss, "loss_fn"),
    Stage("task", prepare_data.find_wanted, "wanted"),
    Stage("opening the data", prepare_data.open_data, "tables part_column kept_arrays"),
    Stage("opening the data", lambda d: prepare_data.check_stream(*d.tables, d.config)),
    Stage("opening the data", prepare_data.cut_into_windows, "tables windows"),
    Stage("opening the model", build_model.open_source, "source"),
    Stage("opening the model", build_model.read_hints, "source hints"),
    Stage("opening the data", prepare_data.open_data_again, "tables"),
    Stage("task", prepare_data.choose_task_and_roles, "task roles"),
    Stage("task", prepare_data.needed_findings, "findings"),
    Stage("task", lambda d: check_loss_options(d.config.loss, d.task, d.loss_fn)),
    Stage("training step", settle_step.check_step, "request", has_step),
    Stage("columns", prepare_data.unify_columns, "forms"),
    Stage(
        "columns",
        lambda d: prepare_data.account(d, Encoder(d.task.name, d.forms.roles)),
        "roles columns",
    ),
    Stage("columns", lambda d: check_file_names(d.forms.table, d.forms.roles)),
    Stage("columns", prepare_data.check_unread, "kept_where", if_ok=True),
    Stage("metrics", metrics.find_scorer, "scorer"),
    Stage("augmentation", augmentation.check_array_changes),
    Stage("augmentation", augmentation.make_copies, "copies"),
    Stage("splitting the rows", split_tables, "data"),
    Stage("tokenizer", fit_encoder.begin_encoder, "encoder"),
    Stage("inputs", fit_encoder.plan_inputs, "encoder"),
    Stage("inputs", fit_encoder.check_one_batch),
    Stage("columns", fit_encoder.read_own_fields, "encoder"),
    Stage("missing values", fit_encoder.read_missing, "encoder"),
    Stage("fitting the encoder", fit_encoder.settle_settings, "encoder"),
    Stage("fitting the encoder", fit_encoder.fit_encoder, "encoder"),
)
"""How rows are read; the model is not built yet."""

BUILDING = (
    Stage("building the model", find_proof, "proof"),
    Stage("building the model", build_model.build_module, "module building"),
    Stage("building the model", build_model.prepare_weights),
    Stage("building the model", build_model.make_pipeline, "built"),
)
ENCODING = Stage("encoding the rows", fit_encoder.encode_split, "train validation")

ENCODED = (
    Stage("machine", lambda d: check_machine(d.config.precision, d.config.trackers)),
    Stage("machine", lambda d: check_emulated(d.config.precision, d.request.device)),
    *READING,
    Stage("classes", lambda d: check_classes(d.encoder, d.data.table)),
    Stage(
        "values",
        lambda d: check_tables(d.data.sides, d.task, d.encoder, d.config.split.draws_apart),
    ),
    Stage("metrics", metrics.choose_best_metric, "task"),
    *BUILDING,
    Stage("columns", lambda d: prepare_data.account(d, d.pipeline.encoder), "roles columns"),
    ENCODING,
    Stage("encoding the rows", encode_named, "named"),
    Stage("augmentation", lambda d: augmentation.check_copies(d.train, d.copies)),
    Stage(
        "encoded rows",
        lambda d: (make_ledger(d.train, d.validation, d.data.left_out, d.drawn), ()),
        "ledger",
    ),
    Stage("encoded rows", lambda d: (rows_key(d), ()), "data_key"),
    Stage("encoded rows", fit_encoder.check_encoded),
)
"""Up to the encoded and checked rows."""

TREES = Stage(
    "fitting trees to compare with",
    settle_job.compare_with_trees,
    "baselines",
    settle_job.has_trees,
)

PROBING = (
    Choice("first batch", probe_model.choose_step_scores, "step_scores", is_called, if_ok=True),
    Stage("first batch", probe_model.probe_first_batch, "first", is_called),
    Stage("augmentation", augmentation.check_mixed_loss, when=is_called),
    Choice(
        "first batch",
        lambda d: (Choices(output=d.first.picked.as_choice()), ()),
        "output",
        is_called,
        stored=True,
    ),
    Choice("targets", choose_target_use, "targets", is_called),
    Stage(
        "first batch on the device",
        probe_model.probe_training_device,
        when=settle_job.is_tried_here,
    ),
    Stage(
        "probes",
        lambda d: (
            d.probing.enter_context(probe_model.perturbed_profile(d.built, d.train, d.first)),
            (),
        ),
        "probed profile",
        is_called,
    ),
    Stage("targets", lambda d: probe_targets(d.probed, d.train), when=is_called),
    Stage("probes", probe_model.probe_model, when=is_called),
    Stage("probes", probe_model.find_unreached, "unreached", is_called),
    Choice("row groups", probe_model.choose_row_groups, "row_groups", is_called),
    Choice("auxiliary loss", probe_model.choose_loss_terms, "auxiliary_loss", is_called),
    Stage("auxiliary loss", settle_job.probe_auxiliary, when=is_called),
    Choice(
        "layout",
        layout.choose_layout,
        "head rows rows_reason attention shared_prompts",
        is_called,
    ),
    Stage("probes", settle_job.end_probes, when=is_called),
)
"""What is tried on a few rows with the weights of the model."""

STAGES: tuple[Row, ...] = (
    *ENCODED,
    Stage("encoded rows", confirm_proof, "proof"),
    Stage("loss", settle_job.settle_task, "pipeline", if_ok=True),
    Stage("baselines", settle_job.measure_baselines, "baselines"),
    Stage("metrics", metrics.check_watched),
    Stage("generation", settle_generation, "pipeline"),
    Stage("metrics", lambda d: (d.pipeline.task, ()), "task"),
    Stage("metrics", metrics.try_metrics, "kept_bytes"),
    Stage("batches", lambda d: build_model.match_collated(d.pipeline, d.train), "pipeline"),
    Stage("augmentation", augmentation.make_array_augment, "augment"),
    Kept("rows of a batch", (Stage("batches", settle_job.find_rows, "min_rows"),), "min_rows"),
    Stage("batches", settle_job.make_batches, "batches choices"),
    Stage("trained weights", lambda d: module_checks.check_trainable(d.pipeline.module)),
    Stage("trained weights", lambda d: module_checks.check_registered(d.pipeline.module)),
    Stage("optimizer", settle_job.settle_optimizer, "optimizer"),
    Stage(
        "optimizer",
        lambda d: module_checks.check_optimizer(d.pipeline.module, d.optimizer.passed),
    ),
    Stage("first batch", settle_step.probe_step, when=has_step),
    Kept("probes", PROBING, "unreached"),
    Stage("probes", probe_model.freeze_unreached, "built", is_called),
    Stage("batches", settle_job.arrange_batches, "batches"),
    Stage("processes", check_divided, when=is_divided),
    Choice("processes", choose_parallel, "parallel", is_shared, stored=True),
    Stage("predicting memory", settle_job.make_job, "work"),
    Stage("predicting memory", layout.choose_frozen, "work choices"),
    Stage(
        "predicting memory",
        lambda d: (d.limit.shared_by(d.request.processes or 1), ()),
        "given_limit",
    ),
    Stage(
        "predicting memory",
        settle_batch_size,
        "work request",
        lambda d: not isinstance(d.config.batch_size, int),
    ),
    Kept(
        "trace",
        (Stage("predicting memory", trace_largest, "traced"),),
        "traced",
        settle_job.has_known_batches,
    ),
    Stage("predicting memory", lambda d: predict_fit(d.work, d.limit, d.traced), "fit"),
    Choice("compiling", layout.choose_compiling, "compile", stored=True),
    Kept("rate", (Stage("learning rate", rate_test.choose_rate, "rate_tried"),), "rate_tried"),
    Stage("learning rate", rate_test.count_copy, "fit", lambda d: d.rate_tried),
    Stage(
        "plan",
        lambda d: ((d.work, ModelChoice(d.source, d.optimizer.lr, d.built.adaptation)), ()),
        "job model",
    ),
    Kept("trees", (TREES,), "baselines"),
    Stage("plan", lambda d: write_proof(d, kept_names())),
)
"""All of planning. It stops at a stage with `if_ok` if an error was found."""


def kept_names() -> frozenset[str]:
    """Return the rows of the table whose outcome can be kept."""
    return frozenset(row.name for row in STAGES if isinstance(row, Kept))


def run_stages(request: Request, progress: Progress = silent, limit: Limit | None = None) -> Plan:
    """Open the data, choose task and columns, fit, encode, build the model, check it all."""
    config = request.config
    check_accepted(config.accept)
    draft = Draft(request, progress, limit)
    with use_cache(config.cache, config.cache_limit_gb), collect_damage() as damaged:
        with (
            infrequent_collection(),
            reading_once(progress, config.cache_limit_gb),
            limit_children(partial(free_for_children, config.max_memory_gb)),
        ):
            try:
                run(draft, ENCODED if request.encodes_only else STAGES)
            except StaleProofError:  # of another fold, for example
                return run_stages(replace(request, shows_only=False), progress, limit)
        draft.note(damaged)
        if config.cache_limit_gb is not None and is_first_on_host():
            draft.note(limit_cache(config.cache_limit_gb))
    plan = draft.plan
    return plan if config.autofix else replace(plan, findings=refuse_fixes(plan.findings))


def read_for_row(request: Request, progress: Progress = silent) -> RowReading:
    """How one row is read for the model; no weights are loaded where its columns are known."""
    request = replace(request, one_row=True)
    config, d = request.config, Draft(request, progress)
    limit_gb = config.cache_limit_gb
    with use_cache(config.cache, limit_gb), reading_once(progress, limit_gb):
        _run_whole(d, READING)
        task, encoder, rows = d.task, d.encoder, (d.data.train, d.data.validation)
        given = task.reads.arrays(encoder.roles)
        if augmentation.asks_change(config, d.objects.augment, given):
            _run_whole(d, (*BUILDING, ENCODING))
            augment, _ = augmentation.make_array_augment(d)
            return RowReading(task, d.pipeline.encoder, *rows, augment)
        taken = {*batch_columns(task.fields_for(encoder)), *encoder.roles.values()}
        extras = extra_fields(d.data.table, taken)
        if encoder.further or d.source.may_read(task.head_for(encoder), extras):
            _run_whole(d, BUILDING)
            encoder = d.pipeline.encoder
        return RowReading(task, encoder, *rows)


def _run_whole(draft: Draft, stages: tuple[Stage, ...]) -> None:
    """Run stages; raise the errors found where planning stops."""
    if not run(draft, stages):
        raise FindingError(*(f for f in draft.plan.findings if f.severity == "error"))
