"""All stages in order; what was found on the way is kept, also where one of them stops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from surefit.checks.encoded_rows import (
    check_batch_norm,
    check_ledger,
    check_optimizer,
    check_registered,
    check_rows,
    check_trainable,
)
from surefit.checks.ledger import make_ledger
from surefit.checks.machine import check_machine
from surefit.config import RunConfig
from surefit.data.cache import choose_cache, fingerprint
from surefit.data.formats.number_columns import without_text_columns
from surefit.encode.store import Store
from surefit.errors import FindingError
from surefit.findings import Finding, has_errors, refuse_fixes
from surefit.memory.host import rare_collection
from surefit.models.open_model import open_model
from surefit.plan.augmentation import check_views, make_views
from surefit.plan.build_model import (
    Fitted,
    build_model,
    match_collated,
    probe_model,
    settle_trained,
)
from surefit.plan.choices import choose_compiling, choose_ways
from surefit.plan.evaluation_metrics import check_watched, find_scorer, try_scorer
from surefit.plan.feature_rows import plan_features
from surefit.plan.fit_in_memory import (
    make_batches,
    make_workload,
    predict_fit,
    settle_batch_size,
)
from surefit.plan.plan import Given, Parts, Plan
from surefit.plan.prepare_data import (
    Sides,
    encode_sides,
    make_encoder,
    num_positions,
    open_training_table,
    split_table,
)
from surefit.processes import main_first
from surefit.progress import Progress, silent
from surefit.tasks.choose_task import choose_task
from surefit.tasks.find_task import find_task
from surefit.tasks.task_spec import TaskSpec


def make_plan(config: RunConfig, given: Given | None = None, progress: Progress = silent) -> Plan:
    """Open the data, choose task and columns, fit, encode, build the model, check it all."""
    given = given or Given()
    draft = _Draft(Plan(config, given.task, (), given=given), progress)
    try:
        with rare_collection(), main_first():
            check_machine(config.precision, config.trackers)
            choose_cache(config.cache)
            plan = draft.finish()
    except FindingError as error:
        plan = replace(draft.so_far(), findings=(*draft.found, *error.findings))
    return plan if config.autofix else replace(plan, findings=refuse_fixes(plan.findings))


class _Draft:
    """A plan in the making: `plan` as far as it is decided, and `found` on the way."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self.plan = plan
        self.progress = progress
        self.found: list[Finding] = []

    def so_far(self) -> Plan:
        return replace(self.plan, findings=tuple(self.found))

    def finish(self) -> Plan:
        """The whole way of the data; a stage that cannot go on raises what it found."""
        config, given, found = self.plan.config, self.plan.given, self.found
        wanted: TaskSpec | tuple[TaskSpec, ...] | None = given.task
        if wanted is None and config.task is not None:
            wanted = find_task(config.task, given.beside)
        table = open_training_table(config, given)
        found += table.findings
        source = open_model(
            given.model if given.model is not None else config.model,
            from_scratch=config.from_scratch,
            trust_remote_code=config.trust_remote_code,
            quantize=config.lora.quantize,
            beside=given.beside,
        )
        task, roles = choose_task(table, wanted, config.columns, source.auto_classes)
        self.plan = replace(self.plan, task=task, roles=roles)
        found[:] = without_text_columns(found, roles, task.whole_rows)
        scorer = find_scorer(config, given, task, found)
        views = make_views(config, given, task, roles, found)
        layout = plan_features(table, roles, source, config, found)
        sides = split_table(table, task, roles, config, given, found)
        encoder = make_encoder(sides, task, roles, source, config, layout, found)
        fitted = build_model(
            source, task, encoder, sides.table, config, given, self.progress, found
        )
        train, evaluation = encode_sides(
            sides, task, fitted.encoder, fitted.fields, self.progress, found, views
        )
        found += check_views(train, views)
        self._check_encoded(sides, task, fitted, train, evaluation)
        if has_errors(found):
            return self.so_far()
        task = try_scorer(scorer, task, evaluation, fitted.encoder)
        check_watched(config, task, fitted)
        self.plan = replace(self.plan, task=task)
        return self._with_parts(task, fitted, train, evaluation)

    def _check_encoded(
        self, sides: Sides, task: TaskSpec, fitted: Fitted, train: Store, evaluation: Store
    ) -> None:
        """Account for every row, and hold the encoded ones against the model."""
        ledger = make_ledger(train, evaluation)
        key = fingerprint(train.key, evaluation.key)
        self.plan = replace(self.plan, ledger=ledger, data_key=key)
        both = ((train, sides.table), (evaluation, sides.eval_table))
        for store, _ in both:
            self.found += (Finding(**noted) for noted in store.notes["findings"])
        self.found += check_ledger(ledger, both, self.plan.config.max_dropped_share)
        positions = num_positions(task, fitted.source, fitted.encoder)
        for store, table in both:
            self.found += check_rows(store, table, fitted.vocab_size, positions)

    def _with_parts(self, task: TaskSpec, fitted: Fitted, train: Store, evaluation: Store) -> Plan:
        """Batches, the checks of the model on them, and the plan with all its parts."""
        config, given = self.plan.config, self.plan.given
        fitted = match_collated(fitted, train, given, self.found)
        batches = make_batches(config, train)
        self.found += check_batch_norm(fitted.module, batches, config.epochs)
        self.found += check_trainable(fitted.module)
        self.found += check_registered(fitted.module)
        check_optimizer(fitted.module, given.optimizer)
        if has_errors(self.found):
            return self.so_far()
        choices: dict[str, Any] = {}
        if not fitted.source.weightless:
            self.found += probe_model(
                fitted, task, train, config.seed, given, longer=config.probes == "all"
            )
            fitted = settle_trained(fitted, task, train, config.seed, given, self.found)
            longest = max(int(store.lengths.max()) for store in (train, evaluation) if len(store))
            fitted, choices = choose_ways(fitted, task, train, longest, config, given, self.found)
        batches = replace(batches, end_to_end=fitted.layout.end_to_end)
        self.progress("predicting memory", 0, 1)
        work = make_workload(task, config, given, fitted, train, evaluation, batches)
        if config.batch_size == "auto":
            config, work = settle_batch_size(config, work, self.found)
            self.plan, batches = replace(self.plan, config=config), work.batches
            self.found += check_batch_norm(fitted.module, batches, config.epochs)
        fit = predict_fit(config, work, fitted.encoder.max_length, self.found)
        self.progress("predicting memory", 1, 1)
        choices |= choose_compiling(fitted, work.num_steps, config, given, self.found)
        parts = Parts(
            source=fitted.source,
            module=fitted.module,
            call=fitted.call,
            loss=fitted.loss,
            encoder=fitted.encoder,
            train=train,
            evaluation=evaluation,
            batches=batches,
            fields=fitted.fields,
            layout=fitted.layout,
            num_steps=work.num_steps,
            lr=config.lr or _default_lr(fitted),
            adaptation=fitted.adaptation,
        )
        return replace(self.so_far(), parts=parts, choices=choices, fit=fit)


def _default_lr(fitted: Fitted) -> float:
    if fitted.adaptation is not None:
        return 2e-4
    untrained = fitted.source.untrained or fitted.source.kind == "object"
    return 1e-3 if untrained else 2e-5
