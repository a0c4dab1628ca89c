"""The later stages of planning: from encoded rows and the built model to the Job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from surefit.batches.order import Batches
from surefit.checks.module_checks import check_single_rows, find_min_rows
from surefit.checks.probes.model_profile import ModelProfile
from surefit.errors import UsageError
from surefit.findings import Finding, has_errors
from surefit.memory.predict_peak import Fit
from surefit.models.named_modules import MakeNamed
from surefit.models.optimizer import DEFAULT, OptimizerSettings, check_rates, find_kind
from surefit.pipeline.open_pipeline import Choices, apply_choices
from surefit.pipeline.own_step import OwnStep
from surefit.pipeline.pipeline import Job, Pipeline
from surefit.plan import fit_in_memory, layout, probe_model
from surefit.plan.augmentation import own_function
from surefit.plan.build_model import ask_output
from surefit.plan.class_loss_options import settle_loss
from surefit.plan.draft import Draft, Findings
from surefit.plan.metrics import try_scorer
from surefit.plan.plan import ModelChoice
from surefit.plan.prepare_data import read_live, run_length
from surefit.plan.probe_targets import probe_targets
from surefit.plan.rate_test import Rates, check_rate, with_copy
from surefit.plan.settle_step import has_step
from surefit.processes import num_processes
from surefit.speed.choose_head import HeadChoice
from surefit.targets.tree_baseline import TREES, measure_trees

DEFAULT_ROWS = 8


def settle_task(d: Draft) -> tuple[Pipeline, Findings]:
    """Return Pipeline with its output and loss, rows that are read anew, and the user's scorer."""
    pipeline = settle_loss(ask_output(d.pipeline, d.config.outputs), d.config.loss, d.train)
    pipeline = read_live(d, pipeline)
    task = try_scorer(d.scorer, d.task, d.validation, pipeline.encoder)
    return replace(pipeline, task=task), ()


def measure_baselines(d: Draft) -> tuple[Mapping[str, Any], Findings]:
    """Return figures of simple predictors on the validation rows."""
    measure, encoder = d.pipeline.task.figures.baselines, d.pipeline.encoder
    return {} if measure is None else measure(d.train, d.validation, encoder), ()


def find_rows(d: Draft) -> tuple[tuple[int, str], Findings]:
    """Return how many rows the module needs in training, and the layer that needs them."""
    pipeline, shortest = d.pipeline, [int(d.train.lengths.argmin())]
    one_row = lambda: pipeline.outputs(pipeline.batch(d.train, shortest))  # noqa: E731
    return find_min_rows(pipeline.module, one_row if is_called(d) else None), ()


def make_batches(d: Draft) -> tuple[tuple[Batches, Choices], Findings]:
    """Return the order of rows and steps; a model that needs two rows never gets one."""
    config, tokens = d.config, d.config.max_tokens
    size, accum = config.batch_size, config.grad_accum
    if size == "auto" and tokens is not None:
        raise UsageError(
            f"batch_size is auto and max_tokens {tokens}: both bound a micro-batch.",
            "Use one of them.",
        )
    if size == "auto":  # a step is one micro-batch until it is chosen
        size, accum = DEFAULT_ROWS * accum, 1
    order = None if config.order == "auto" else config.order
    count = d.request.processes or num_processes()
    batches = Batches(d.train.lengths, config.seed, size, accum, count, tokens, order=order)
    blocks = layout.choose_block_rows(d.train, d.request.choices)
    min_rows, layer = d.min_rows or (1, "")
    batches = replace(batches, block_rows=blocks or 1, min_rows=min_rows)
    choices = replace(d.plan.choices, order_block_rows=blocks)
    return (batches, choices), check_single_rows(batches, config.epochs, layer)


def settle_optimizer(d: Draft) -> tuple[OptimizerSettings, Findings]:
    """Settle what the optimizer is made from; refuse rates for parameters that do not exist."""
    config, name, own = d.config, d.config.optimizer, d.pipeline.loss
    if isinstance(own, OwnStep):
        make: Any = MakeNamed(d.pipeline.module, own.parts_of)
        return replace(next(iter(own.parts_of.values())).settings, passed=make), ()
    code = name if ":" in name else None
    passed, found = own_function("optimizer", code, d.objects.optimizer, d.request.code)
    check_rates(d.pipeline.module, config.lr_by, passed)
    kind = DEFAULT if passed is not None else find_kind(name)
    if is_divided(d) and not kind.shards:
        raise UsageError(
            f"optimizer={name} keeps state that parallel=fsdp cannot shard.",
            "Use adamw, sgd or lion, or parallel=ddp.",
        )
    lr = config.lr or d.built.default_lr
    return OptimizerSettings(lr, config.weight_decay, config.lr_by, kind, passed), found


def has_weights(d: Draft) -> bool:
    """Return whether the model can be tried."""
    return not d.source.weightless


def is_called(d: Draft) -> bool:
    """Return whether the model can be tried by calling it, as a step does."""
    return has_weights(d) and not has_step(d)


def is_tried_here(d: Draft) -> bool:
    """Return whether a new run is planned for the devices of this machine."""
    return is_called(d) and d.request.choices is None and d.config.device_memory_gb is None


def store_output(d: Draft) -> tuple[Choices, Findings]:
    """Return the output of the module that is used."""
    return Choices(output=d.first.picked.as_choice()), ()


def perturb(d: Draft) -> tuple[tuple[Pipeline, ModelProfile], Findings]:
    """Return the Pipeline that probes use, until they end, and its passes."""
    profile = probe_model.perturbed_profile(d.built, d.train, d.first)
    return d.probing.enter_context(profile), ()


def probe_auxiliary(d: Draft) -> list[Finding]:
    """Whether targets reach the outputs where the model is called with labels for its own loss."""
    if not d.plan.choices.auxiliary_loss:
        return []
    return probe_targets(apply_choices(d.probed, d.plan.choices), d.train)


def choose_layout(d: Draft) -> tuple[Choices, Findings]:
    """Return the head and the layout of batches, tried on the Pipeline that probes use."""
    if d.loss_fn is not None:
        return Choices(rows="padded", rows_reason="loss_fn computes the loss"), ()
    stores, plain = (d.train, d.validation), apply_choices(d.probed, d.plan.choices)
    longest = max(int(store.lengths.max()) for store in stores if len(store))
    may_join = d.config.padding_free != "off" and d.config.compile != "on"
    dtype = d.lower_dtype
    chosen, made = layout.choose_layout(plain, d.train, longest, may_join, dtype)
    if d.plan.choices.auxiliary_loss and not probe_model.keeps_loss_terms(plain, chosen, d.train):
        reason = "the model's auxiliary loss differs in padding-free batches"
        return Choices(HeadChoice("all"), "padded", reason), ()
    return made, ()


def end_probes(d: Draft) -> None:
    """Free the copy of the model, and the outputs of all passes."""
    d.probing.close()
    del d.first, d.probed, d.profile


def arrange_batches(d: Draft) -> tuple[Batches, Findings]:
    """Return the batches in the chosen layout."""
    return replace(d.batches, padding_free=d.pipeline.layout.padding_free), ()


def is_shared(d: Draft) -> bool:
    """Return whether several processes train the model."""
    return has_weights(d) and d.batches.num_processes > 1


def is_divided(d: Draft) -> bool:
    """Return whether each process has a share of the model."""
    return is_shared(d) and d.config.parallel == "fsdp"


def make_job(d: Draft) -> tuple[Job, Findings]:
    """Return the Job, before its micro-batches are settled."""
    config, pipeline = d.config, d.pipeline
    job = Job(
        pipeline,
        d.train,
        d.validation,
        d.batches,
        *run_length(pipeline, d.batches, config),
        config.eval_every,
        fit_in_memory.generation_size(pipeline, config.generate, len(d.validation)),
        d.lower_dtype,
        d.kept_bytes,
        d.augment,
        config.parallel,
        d.plan.choices.parallel is not None and d.plan.choices.parallel.whole,
        optimizer=d.optimizer,
        named=d.named,
    )
    return job, ()


def is_size_free(d: Draft) -> bool:
    """Return whether the size of a micro-batch is to be chosen."""
    return d.config.batch_size == "auto"


def is_rate_tried(d: Draft) -> bool:
    """Return whether a new run without errors has a learning rate that somebody else than surefit
    chose.

    A module, loss or optimizer of the user's own may blow up at the default rate, too.
    """
    if not is_called(d) or d.request.choices is not None or has_errors(d.plan.findings):
        return False
    usual = d.source.auto_classes is not None and d.loss_fn is None
    return not usual or d.optimizer != OptimizerSettings(d.built.default_lr, d.config.weight_decay)


def has_known_batches(d: Draft) -> bool:
    """Return whether the batches do not depend on the memory that is free now."""
    return d.config.batch_size != "auto" and d.batches.block_rows == 1


def try_rate(d: Draft) -> tuple[bool | None, list[Finding]]:
    """Take a few steps at the peak learning rate, restored afterwards."""
    config, fit, default = d.config, d.plan.fit, d.built.default_lr
    assert fit is not None
    if not is_rate_tried(d):
        return False, []
    rates = Rates(d.optimizer, config.clip, default)
    known = [b["loss"] for b in d.plan.baselines.values() if "loss" in b]
    return check_rate(d.work, fit, rates, max(known, default=None))


def count_rate(d: Draft) -> tuple[Fit, Findings]:
    """Return the fit with the memory that the test of the learning rate takes."""
    assert d.plan.fit is not None
    return with_copy(d.plan.fit, d.work), ()


def decide(d: Draft) -> tuple[tuple[Job, ModelChoice], Findings]:
    """Return what the Plan of a run that can be trained has besides."""
    return (d.work, ModelChoice(d.source, d.optimizer.lr, d.built.adaptation)), ()


def has_trees(d: Draft) -> bool:
    """Whether trees are fitted to compare with; a resumed run has the figures it was begun with."""
    new = d.request.choices is None and not has_errors(d.plan.findings)
    return new and d.task.figures.judge is not None and d.config.table.trees


def compare_with_trees(d: Draft) -> tuple[Mapping[str, Any], Findings]:
    """Return the baselines with the figures of trees that are fitted to the table."""
    assert d.task.figures.judge is not None
    figures = measure_trees(d.train, d.validation, d.pipeline.encoder, d.task.figures.judge)
    return {**d.plan.baselines, **({TREES: figures} if figures else {})}, ()
