"""RunConfig to Plan: all stages in order.

Each stage takes values of the stages before it and returns what it made and what it found. This
file alone knows the whole config; a stage gets the settings it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from surefit.checks.batch_padding import check_padding
from surefit.checks.class_names import check_classes
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
from surefit.checks.module_checks import (
    check_batch_norm,
    check_optimizer,
    check_registered,
    check_trainable,
)
from surefit.config import joint_parts
from surefit.data.cache import fingerprint, use_cache
from surefit.data.cache_contents import limit_cache
from surefit.data.cache_use import collect_damage
from surefit.data.formats.number_columns import without_text_columns
from surefit.data.table import Table
from surefit.encode.encoder import Encoder
from surefit.encode.features.feature_layout import Hints
from surefit.encode.store import Store
from surefit.encode.tally import remark_findings
from surefit.encode.text.templates import read_asked
from surefit.errors import FindingError
from surefit.findings import (
    Finding,
    accept_findings,
    check_accepted,
    has_errors,
    refuse_fixes,
)
from surefit.memory.limit import Limit, find_limit
from surefit.memory.process_memory import peak_bytes, reset_peak
from surefit.models.model_source import ModelSource
from surefit.models.open_model import open_model
from surefit.models.parameter_patterns import check_rates, freeze_parameters
from surefit.pipeline.job import Job
from surefit.pipeline.open_pipeline import apply_choices
from surefit.plan.audio_rows import plan_audio
from surefit.plan.augment_arrays import check_array_changes, make_array_augment
from surefit.plan.augmentation import check_copies, make_copies
from surefit.plan.best_metric import choose_best_metric
from surefit.plan.build_model import Built, build_module, make_pipeline, match_collated
from surefit.plan.choices import choose_compiling, choose_layout
from surefit.plan.choose_form import choose_form
from surefit.plan.class_loss_options import check_loss_options, settle_loss
from surefit.plan.evaluation_metrics import check_watched, find_scorer, try_scorer
from surefit.plan.feature_rows import BatchBound, plan_features
from surefit.plan.fit_in_memory import (
    autocast_dtype,
    generation_size,
    make_batches,
    predict_fit,
    settle_batch_size,
)
from surefit.plan.garbage_collection import infrequent_collection
from surefit.plan.generation_settings import settle_generation
from surefit.plan.live_data import check_stream, read_live, run_length
from surefit.plan.own_metrics import choose_metrics, try_metrics
from surefit.plan.plan import ModelChoice, Plan
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
from surefit.plan.probe_model import (
    choose_loss_terms,
    choose_row_groups,
    freeze_unreached,
    keeps_loss_terms,
    perturbed_pipeline,
    probe_first_batch,
    probe_model,
)
from surefit.plan.rate_test import Rates, check_rate
from surefit.plan.split_data import SplitData, SplitSettings, split_tables
from surefit.plan.tree_figures import compare_with_trees
from surefit.plan.unread_columns import check_unread
from surefit.processes import is_first_on_host
from surefit.progress import Progress, silent
from surefit.request import Request
from surefit.tasks.choose_task import choose_task, takes_class_files
from surefit.tasks.classes import SETTING as LABEL_SEPARATOR
from surefit.tasks.column_account import account_columns
from surefit.tasks.find_task import find_task
from surefit.tasks.source_forms import unify_forms
from surefit.tasks.task_spec import TaskSpec
from surefit.user_code import report_code

Made = TypeVar("Made")

OWN_CHOICES = ("auxiliary_loss", "row_groups")
"""Choices that are not about the head and the layout."""


def run_stages(request: Request, progress: Progress = silent, limit: Limit | None = None) -> Plan:
    """Open the data, choose task and columns, fit, encode, build the model, check it all."""
    config = request.config
    check_accepted(config.accept)
    reset_peak()
    planner = _Planner(Plan(request, task=request.objects.task), progress, limit)
    with use_cache(config.cache), collect_damage() as damaged:
        try:
            with infrequent_collection():
                check_machine(config.precision, config.trackers)
                planner.run()
                planner.plan = compare_with_trees(planner.plan, progress)
        except FindingError as error:
            planner.note(error.findings)
        planner.note(damaged)
        if config.cache_limit_gb is not None and is_first_on_host():
            planner.note(limit_cache(config.cache_limit_gb))
    plan = replace(planner.plan, planning_peak_bytes=peak_bytes())
    return plan if config.autofix else replace(plan, findings=refuse_fixes(plan.findings))


class _Planner:
    """The plan as far as it is decided; a stage that cannot continue raises what it found."""

    def __init__(self, plan: Plan, progress: Progress, limit: Limit | None) -> None:
        self.plan = plan
        self.limit = limit
        self.request = plan.request
        self.progress = progress

    def keep(self, made: tuple[Made, Iterable[Finding]]) -> Made:
        """What a stage made; what it found is added to the plan."""
        value, findings = made
        self.note(findings)
        return value

    def note(self, findings: Iterable[Finding]) -> None:
        """Add what a check found; what the user accepts does not stop the run."""
        self.plan = self.plan.found(accept_findings(findings, self.request.config.accept))

    def run(self) -> None:
        """Files to a Job; the plan holds what was decided, wherever it stops."""
        config, objects, code = self.request.config, self.request.objects, self.request.code
        wanted: TaskSpec | tuple[TaskSpec, ...] | None = objects.task
        if wanted is None and config.task is not None:
            wanted = find_task(config.task, code)
            self.note(report_code("task", config.task))
        table, eval_table = self.keep(
            open_tables(
                objects.data if objects.data is not None else list(config.data),
                objects.eval_data if objects.eval_data is not None else list(config.eval_data),
                config.read,
                config.on_bad_file,
                config.ignore,
                takes_class_files(wanted),
                config.columns.values(),
            )
        )
        check_stream(table, eval_table, config)
        source = open_model(
            objects.model if objects.model is not None else config.model,
            from_scratch=config.from_scratch,
            trust_remote_code=config.trust_remote_code,
            quantize=config.lora.quantize,
            code=code,
        )
        hints = source.hints()
        columns = choose_form(table, hints, wanted, config.columns)
        task, roles = choose_task(table, wanted, columns, source.auto_classes)
        task = self.keep(choose_metrics(config.metrics, objects.metrics, code, task))
        findings = without_text_columns(self.plan.findings, roles, task.whole_rows)
        self.plan = replace(self.plan, task=task, roles=roles, findings=tuple(findings))
        check_loss_options(config.loss, task, objects.loss_fn)
        names = [*table.columns, *config.ignore, *(eval_table.columns if eval_table else ())]
        forms = self.keep(unify_forms(table, eval_table, task, roles, config.columns))
        table, eval_table, roles = forms.table, forms.eval_table, dict(forms.roles)
        self._account(names, Encoder(task.name, roles), forms.read_as)
        self.note(check_file_names(table, roles))
        if has_errors(self.plan.findings):
            return
        kept_where = self.keep(check_unread(table, self.plan, config.columns))
        metric = config.early_stopping.metric
        scorer = self.keep(find_scorer(config.generate.scorer, objects.scorer, code, task, metric))
        check_array_changes(config, task, roles)
        copies = self.keep(make_copies(task, roles, self.request))
        source = replace(source, image=source.image or dict(hints.image or {}))
        layout = self._plan_features(table, task, roles, source, hints)
        data = self.keep(
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
        encoder = self._make_encoder(data, task, roles, source, layout)
        self.note(check_classes(encoder, data.table))
        sides = (data.table, data.train), (data.validation_table, data.validation)
        self.note(check_tables(sides, task, encoder))
        task = self.keep(choose_best_metric(task, encoder, metric))
        if kept_where is not None:
            encoder = replace(encoder, settings={**encoder.settings, "kept_where": kept_where})
        built = self._build(source, task, encoder, data.table)
        self._account(names, built.pipeline.encoder, forms.read_as)
        train, validation = self.keep(encode_split(built.pipeline, data, copies, self.progress))
        self.note(check_copies(train, copies))
        self._check_encoded(data, built, train, validation)
        if has_errors(self.plan.findings) or self.request.encodes_only:
            return
        pipeline = settle_loss(built.pipeline, config.loss, train)
        pipeline = read_live(pipeline, data, train, validation, copies)
        task = try_scorer(scorer, task, validation, pipeline.encoder)
        built = replace(built, pipeline=replace(pipeline, task=task))
        self._settle_evaluation(built, train, validation)

    def _settle_evaluation(self, built: Built, train: Store, validation: Store) -> None:
        """Baselines, metrics and generation, and then the Job."""
        config, pipeline = self.request.config, built.pipeline
        task, encoder = pipeline.task, pipeline.encoder
        if task.baselines is not None:
            self.plan = replace(self.plan, baselines=task.baselines(train, validation, encoder))
        metric = config.early_stopping.metric
        check_watched(metric, config.generate.rows, pipeline, built.source.name)
        pipeline = self.keep(settle_generation(pipeline, config.generate))
        self.plan = replace(self.plan, task=task)
        kept_bytes = self.keep(try_metrics(task, validation, encoder))
        self._make_job(replace(built, pipeline=pipeline), train, validation, kept_bytes)

    def _account(self, names: Iterable[str], encoder: Encoder, read_as: Mapping[str, str]) -> None:
        """Note the role of every column; `read_as` has those of files in another form."""
        assert self.plan.task is not None
        read = account_columns([*dict.fromkeys(names)], self.plan.task, encoder)
        columns = {c: role for name, role in read.items() for c in joint_parts(name) or [name]}
        other = {name: role for name, role in read_as.items() if columns.get(name) is None}
        by = self.request.config.split.by
        grouped = {} if by is None or by in encoder.roles.values() else {by: "split.by"}
        self.plan = replace(self.plan, roles=encoder.roles, columns={**columns, **other, **grouped})

    def _plan_features(
        self,
        table: Table,
        task: TaskSpec,
        roles: Mapping[str, str],
        source: ModelSource,
        hints: Hints,
    ) -> dict[str, Any] | None:
        config = self.request.config
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
        return self.keep(plan_features(table, roles, hints, bound))

    def _make_encoder(
        self,
        data: SplitData,
        task: TaskSpec,
        roles: Mapping[str, str],
        source: ModelSource,
        layout: dict[str, Any] | None,
    ) -> Encoder:
        config, tokenizer = self.request.config, None
        reads_tokens = "input_ids" in task.fields_for(Encoder(task.name, roles))
        if reads_tokens:
            name = config.tokenizer or source.tokenizer
            trusted = self.request.code.allows_remote(name or "", config.trust_remote_code)
            tokenizer = self.keep(choose_tokenizer(data, task, roles, source, name, trusted))
        positions = source.max_positions if reads_tokens else None
        audio = self.keep(plan_audio(data.table, data.train, roles, source.audio, config.audio))
        encoder = Encoder(
            task.name,
            roles,
            tokenizer=tokenizer,
            whole_rows=task.whole_rows,
            max_length=length_limit(
                config.max_seq_length, config.max_tokens, positions, reads_tokens
            ),
            settings={
                "overlong": overlong_policy(config.overlong, task, data.table),
                "loss_on": config.loss_on,
                "template": read_asked(config.template),
                "decoder_start": source.decoder_start,
                "features.layout": layout,
                "seed": config.seed,
                "table.max_categories": config.table.max_categories,
                "image.size": config.image.size,
                "image.model": source.image,
                "image.format": config.image.asked(),
                "audio": audio,
                "on_bad_file": config.on_bad_file,
                LABEL_SEPARATOR: config.label_separator,
            },
        )
        encoder = self.keep(fit_encoder(encoder, data, task, source, config.max_seq_length))
        keep_limit(encoder, task)
        return encoder

    def _build(self, source: ModelSource, task: TaskSpec, encoder: Encoder, table: Table) -> Built:
        config, objects = self.request.config, self.request.objects
        self.progress("building the model", 0, 1)
        module, adaptation = self.keep(
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
        self.progress("building the model", 1, 1)
        pipeline = self.keep(
            make_pipeline(
                module, task, encoder, table, config.seed, objects.loss_fn, objects.collate_fn
            )
        )
        return Built(pipeline, source, table, adaptation)

    def _check_encoded(
        self, data: SplitData, built: Built, train: Store, validation: Store
    ) -> None:
        """Account for every row, and hold the encoded ones against the model."""
        ledger = make_ledger(train, validation)
        key = fingerprint(train.key, validation.key)
        self.plan = replace(self.plan, ledger=ledger, data_key=key)
        both = ((train, data.table), (validation, data.validation_table))
        sides = [
            (table, store.notes, len(rows))
            for (store, table), rows in zip(both, (data.train, data.validation), strict=True)
        ]
        remarks = remark_findings(sides, built.pipeline.encoder)
        lost = check_ledger(ledger, both, self.request.config.max_dropped_share)
        self.note(explain_loss(remarks, lost))
        pipeline = built.pipeline
        positions = num_positions(pipeline.task, built.source, pipeline.encoder)
        for store, table in both:
            self.note(check_rows(store, table, pipeline.vocab_size, positions))
        self.note(check_stores(both, train.fields, pipeline.encoder))
        head = pipeline.task.head_for(pipeline.encoder)
        ids_known = all(f.code != TOKEN_OUT_OF_VOCABULARY.code for f in self.plan.findings)
        if head is not None and head.predicts == "next_token" and ids_known:
            labelled = [
                (store, table, rows)
                for (store, table), rows in zip(both, (data.train, data.validation), strict=True)
            ]
            trained = None if built.source.untrained else pipeline.module
            self.note(check_causal_labels(labelled, pipeline.encoder, trained))

    def _make_job(self, built: Built, train: Store, validation: Store, kept_bytes: int) -> None:
        """Batches, the checks of the model on them, and the plan with its Job."""
        config, request = self.request.config, self.request
        built = replace(built, pipeline=self.keep(match_collated(built.pipeline, train)))
        augment = self.keep(make_array_augment(request, built.pipeline, train))
        batches = make_batches(
            train.lengths,
            config.seed,
            config.batch_size,
            config.grad_accum,
            config.max_tokens,
            config.order,
            request.processes,
        )
        module = built.pipeline.module
        self.note(check_batch_norm(module, batches, config.epochs))
        self.note(check_trainable(module))
        self.note(check_registered(module))
        check_optimizer(module, request.objects.optimizer)
        check_rates(module, config.lr_by, request.objects.optimizer)
        if has_errors(self.plan.findings):
            return
        choices: dict[str, Any] = {}
        if not built.source.weightless:
            built, choices = self._probe(built, train, validation)
        pipeline = built.pipeline
        batches = replace(batches, padding_free=pipeline.layout.padding_free)
        if config.batch_size != "auto":
            self.note(check_padding(batches))
        job = self._fit_in_memory(
            Job(
                pipeline,
                train,
                validation,
                batches,
                *run_length(pipeline, batches, config),
                config.eval_every,
                generation_size(pipeline, config.generate, len(validation)),
                autocast_dtype(config.precision, config.device_memory_gb),
                kept_bytes,
                augment,
            )
        )
        choices |= self.keep(
            choose_compiling(module, job.num_steps, config.compile, request.choices)
        )
        model = ModelChoice(built.source, config.lr or built.default_lr, built.adaptation)
        if not built.source.weightless and not request.choices:
            self._try_rate(job, model.lr, built.default_lr)
        self.plan = replace(self.plan, job=job, model=model, choices=choices)

    def _try_rate(self, job: Job, lr: float, default: float) -> None:
        """A few steps at the peak learning rate, restored afterwards."""
        config, fit = self.request.config, self.plan.fit
        if fit is None or has_errors(self.plan.findings):
            return
        optimizer = self.request.objects.optimizer
        rates = Rates(lr, config.weight_decay, config.clip, optimizer, default, config.lr_by)
        known = [b["loss"] for b in self.plan.baselines.values() if "loss" in b]
        fit = self.keep(check_rate(job, fit, rates, max(known, default=None)))
        self.plan = replace(self.plan, fit=fit)

    def _probe(self, built: Built, train: Store, validation: Store) -> tuple[Built, dict[str, Any]]:
        """Try the model on a few rows: what is wrong with it, and which layout it allows."""
        config, earlier = self.request.config, self.request.choices
        own_loss_fn = self.request.objects.loss_fn is not None
        self.note(probe_first_batch(built, train))
        with perturbed_pipeline(built, train) as probed:
            self.note(probe_model(built, probed, train, longer=config.probes == "all"))
            built = self.keep(freeze_unreached(built, train))
            choices = {name: earlier[name] for name in OWN_CHOICES if name in earlier}
            if not earlier:
                generates = config.generate.rows > 0 and len(validation) > 0
                choices = self.keep(choose_row_groups(probed, train, generates))
            if own_loss_fn:
                choices |= {"rows": "padded", "rows_reason": "loss_fn computes the loss"}
                return replace(built, pipeline=apply_choices(built.pipeline, choices)), choices
            if not earlier:
                choices |= self.keep(choose_loss_terms(probed, train))
            plain = apply_choices(probed, choices)
            longest = max(int(store.lengths.max()) for store in (train, validation) if len(store))
            may_join = config.padding_free != "off" and config.compile != "on"
            chosen, layout = self.keep(choose_layout(plain, train, longest, may_join, earlier))
            unproved = not earlier and "auxiliary_loss" in choices
            if unproved and not keeps_loss_terms(plain, chosen, train):
                reason = "the model's auxiliary loss differs in padding-free batches"
                chosen, layout = plain, {"head": {"positions": "all"}, "rows": "padded"}
                layout["rows_reason"] = reason
        choices |= layout
        if chosen.module is not built.pipeline.module:  # chosen on the copy
            chosen = apply_choices(built.pipeline, choices)
        return replace(built, pipeline=chosen), choices

    def _fit_in_memory(self, job: Job) -> Job:
        """Predict peak and time; settle the batch size if it is to be chosen."""
        config = self.request.config
        self.progress("predicting memory", 0, 1)
        limit = self.limit or find_limit(config.max_memory_gb, config.device_memory_gb)
        limit = limit.shared_by(self.request.processes or 1)
        if config.batch_size == "auto":
            job = self.keep(settle_batch_size(job, limit))
            sizes = {"batch_size": job.batches.batch_size, "grad_accum": job.batches.grad_accum}
            settled = replace(self.request, config=config.model_copy(update=sizes))
            self.plan = replace(self.plan, request=settled)
            self.note(check_batch_norm(job.pipeline.module, job.batches, config.epochs))
        fit = self.keep(predict_fit(job, limit))
        self.plan = replace(self.plan, fit=fit)
        self.progress("predicting memory", 1, 1)
        return job
