"""The later stages of planning: from encoded rows and the built model to the Job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from surefit.batches.order import Batches
from surefit.checks.module_checks import check_single_rows, find_min_rows
from surefit.config import DEFAULT_ROWS
from surefit.errors import UsageError
from surefit.findings import Finding, has_errors, note
from surefit.models.embedding_noise import refuse_noise
from surefit.models.named_modules import MakeNamed
from surefit.models.optimizer import (
    DEFAULT,
    OptimizerSettings,
    check_rates,
    find_kind,
)
from surefit.pipeline.open_pipeline import Choices, apply_choices
from surefit.pipeline.own_step import OwnStep
from surefit.pipeline.pipeline import Job, Pipeline
from surefit.plan import fit_in_memory, layout
from surefit.plan.augmentation import own_function
from surefit.plan.build_model import ask_output
from surefit.plan.class_loss_options import settle_loss
from surefit.plan.draft import Draft, Findings
from surefit.plan.metrics import try_scorer
from surefit.plan.prepare_data import read_live, run_length
from surefit.plan.probe_targets import probe_targets
from surefit.plan.settle_step import has_step
from surefit.processes import num_processes
from surefit.targets.baselines import TREES, measure_trees


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
    if fit_in_memory.is_chosen(d):  # a step is one micro-batch until it is chosen
        size, accum = fit_in_memory.usual_rows(d) * accum, 1
    elif not isinstance(size, int):
        size = DEFAULT_ROWS
    order = None if config.order == "auto" else config.order
    count = d.request.processes or num_processes()
    batches = Batches(d.train.lengths, config.seed, size, accum, count, tokens, order=order)
    blocks = layout.choose_block_rows(d.train, d.request.choices)
    min_rows, layer = d.min_rows or (1, "")
    batches = replace(batches, block_rows=blocks or 1, min_rows=min_rows, sources=d.drawn)
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
    settings = OptimizerSettings(lr, config.weight_decay, config.lr_by, kind, passed, config.ema)
    if config.ema is not None:
        steps = round(1 / (1 - config.ema))
        message = (
            f"Evaluations, model/ and exports have the average of the weights over about the last "
            f"{steps:,} steps (ema {config.ema:g}); checkpoints have both."
        )
        found = [*found, note(message)]
    return settings, found


def has_weights(d: Draft) -> bool:
    """Return whether the model can be tried."""
    return not d.source.weightless


def is_called(d: Draft) -> bool:
    """Return whether the model can be tried by calling it, as a step does."""
    return has_weights(d) and not has_step(d)


def is_tried_here(d: Draft) -> bool:
    """Return whether a new run is planned for the devices of this machine."""
    return is_called(d) and d.request.choices is None and d.config.device_memory_gb is None


def probe_auxiliary(d: Draft) -> list[Finding]:
    """Whether targets reach the outputs where the model is called with labels for its own loss."""
    if not d.plan.choices.auxiliary_loss:
        return []
    return probe_targets(apply_choices(d.probed, d.plan.choices), d.train)


def end_probes(d: Draft) -> None:
    """Free the copy of the model, and the outputs of all passes."""
    d.probing.close()
    del d.first, d.probed, d.profile


def arrange_batches(d: Draft) -> tuple[Batches, Findings]:
    """Return the batches in the chosen layout, and what takes the place of packing."""
    layout, reason = d.pipeline.layout, d.plan.choices.rows_reason
    made = f"batches are padded ({reason}), so that rows never see each other"
    if layout.padding_free:
        made = "batches are padding-free: rows lie end to end, and do not see each other"
    found = [note(f"packing: no rows are joined; {made}.")] if d.config.packing else []
    return replace(d.batches, padding_free=layout.padding_free), found


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
        neftune=config.neftune,
    )
    if config.neftune is not None:
        refuse_noise(pipeline.module)
    return job, ()


def has_known_batches(d: Draft) -> bool:
    """Return whether the batches do not depend on the memory that is free now."""
    return not fit_in_memory.is_chosen(d) and d.batches.block_rows == 1


def has_trees(d: Draft) -> bool:
    """Whether trees are fitted to compare with; a resumed run has the figures it was begun with."""
    new = d.request.choices is None and not has_errors(d.plan.findings)
    return new and d.task.figures.judge is not None and d.config.table.trees


def compare_with_trees(d: Draft) -> tuple[Mapping[str, Any], Findings]:
    """Return the baselines with the figures of trees that are fitted to the table."""
    assert d.task.figures.judge is not None
    figures = measure_trees(d.train, d.validation, d.pipeline.encoder, d.task.figures.judge)
    return {**d.plan.baselines, **({TREES: figures} if figures else {})}, ()
