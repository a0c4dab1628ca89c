"""Experiments on the real model with a few real rows: what training would show too late."""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from surefit.batches.branches import cut_row
from surefit.batches.field import NUM_TARGETS, starts_in_time, well_known_fields
from surefit.checks.half_precision_trial import why_not
from surefit.checks.probes.first_batch import (
    OWN_LOSS,
    ExpectedCount,
    FirstPass,
    check_first_pass,
)
from surefit.checks.probes.model_probes import run_probes
from surefit.checks.probes.model_profile import ModelProfile, perturbed_copy, tolerance
from surefit.checks.probes.outputs import ExpectedOutputs
from surefit.checks.probes.targets import compare_losses
from surefit.checks.probes.trials import (
    NEW_TOKENS,
    check_on_device,
    check_reload,
    choose_generation,
)
from surefit.data.table import Table
from surefit.errors import UsageError, describe_error
from surefit.findings import Finding, note, rule
from surefit.inputs.encoder_state import PLAIN
from surefit.inputs.store import Store
from surefit.models.auxiliary_loss import without_router_logits
from surefit.models.call import with_module_loss
from surefit.models.feature_model import FeatureModel
from surefit.models.lora_targets import NO_LORA_TARGET
from surefit.models.module_outputs import StepScores, describe_axes, find_step_scores
from surefit.models.quantize import num_weights
from surefit.models.save_model import load_model, needs_module, save_model
from surefit.models.transformers_models import is_checkpointing, quiet_transformers
from surefit.pipeline.open_pipeline import Choices
from surefit.pipeline.pipeline import Pipeline
from surefit.pipeline.row_groups import RowGroups, Together
from surefit.plan.build_model import Built
from surefit.plan.draft import Draft
from surefit.plan.layout import training_device
from surefit.plan.metrics import METRIC_FAILED
from surefit.speed.numerics import preserved_state
from surefit.targets.own_loss import OwnLoss, OwnLossError, own_columns
from surefit.user_code import RunCode

GENERATION_FAILS = rule(
    "SF713",
    "error",
    "generation fails",
    why="Evaluation generates text, so the run would end at its first evaluation.",
    fix="Correct the model's generate, or evaluate without it: --set generate.rows=0.",
)

PROBE_TOKENS = 32
"""Tokens of a row that a probe reads, at least."""
PROBE_LOGITS, PROBE_PRODUCTS = 8_000_000, 4_000_000_000
"""Logits of a longer row, and products of its tokens with weights, about at most."""
MORE_ROWS, MORE_POSITIONS = 1024, 2048
"""Rows that are tried where the first ones have no gradient, and positions of a batch of them."""
MORE_TARGETS = 100_000
"""Numbers to predict that are compared with what the outputs can be."""
MAX_COPIED_WEIGHTS = 200_000_000
"""Larger models are probed with the weights they have."""


@contextmanager
def perturbed_profile(
    built: Built, train: Store, first: FirstPass
) -> Iterator[tuple[Pipeline, ModelProfile]]:
    """The Pipeline that probes use, and its passes.

    Of an untrained model, a copy with perturbed weights is used, if its outputs are finite.
    """
    pipeline = built.pipeline
    untrained = built.source.untrained or built.source.kind == "object"
    size = sum(num_weights(weight) for weight in pipeline.module.parameters())
    if untrained and size <= MAX_COPIED_WEIGHTS:
        with perturbed_copy(pipeline.module, pipeline.call) as copied:
            if copied is not None:
                probed = replace(pipeline, module=copied[0], call=copied[1])
                profile = make_profile(probed, train)
                if _is_finite(profile):
                    yield probed, profile
                    return
    yield pipeline, make_profile(pipeline, train, first)


def _is_finite(profile: ModelProfile) -> bool:
    try:
        return math.isfinite(profile.loss_of(profile.batch, profile.together))
    except Exception:  # with other weights, the module's own code may fail
        return False


def choose_step_scores(d: Draft) -> tuple[Choices, list[Finding]]:
    """Where a module of one's own has the time, if steps have classes, as a choice of the plan."""
    pipeline, train, stride = d.pipeline, d.train, d.config.features.stride
    head = pipeline.task.head_for(pipeline.encoder)
    if head is None or head.body != "step_classes" or isinstance(pipeline.module, FeatureModel):
        return Choices(), []
    batch, _ = _probe_batch(pipeline, train)
    if "inputs_embeds" not in batch:  # of one's own collate_fn
        return Choices(), []

    def run(batch: Any, known: StepScores | None = None) -> Any:
        import torch

        reads = replace(pipeline.call.reads, step_scores=known)
        tried = replace(pipeline, call=replace(pipeline.call, reads=reads))
        try:
            with preserved_state(pipeline.module), torch.no_grad():
                return tried.outputs(batch).logits
        except Exception:  # reported by the probe of the first batch, if it is a fault
            return None

    turned = StepScores(reads_time_last=True)
    time_last = run(batch) is None and run(batch, turned) is not None
    found = find_step_scores(partial(run, known=turned) if time_last else run, batch, stride)
    if found is not None and time_last:
        found = replace(found, reads_time_last=True)
    if found is None or found == StepScores():
        return Choices(), []
    return Choices(step_scores=found), [describe_axes(found)]


def probe_first_batch(d: Draft) -> tuple[FirstPass, list[Finding]]:
    """Return the longest and the shortest training row go through the model together, and back."""
    built, train, pipeline = d.built, d.train, d.pipeline
    for name in built.adaptation.trained if built.adaptation is not None else ():
        pipeline.module.get_parameter(name).requires_grad_(True)  # an earlier plan may freeze it
    batch, num_targets = _probe_batch(pipeline, train)
    outputs = expected_outputs(pipeline)
    if outputs is not None:
        of_numbers = outputs.unit != "classes" and "labels" in train.fields
        numbers = train.values("labels")[:MORE_TARGETS] if of_numbers else ()
        locate = partial(_first_of_class, train, built.table)
        outputs = replace(outputs, locate=locate, targets=numbers)
    count = ExpectedCount(num_targets, pipeline.counts_in_loss)
    first = FirstPass(pipeline.module, pipeline.call, batch, pipeline.loss, count)
    found = check_first_pass(first, outputs)
    if isinstance(pipeline.loss, OwnLoss) and pipeline.loss.returns_mean:
        unit = "rows" if num_targets == len(_chosen_rows(train)) else "labelled targets"
        message = f"loss_fn returns one number; it counts as the mean over the {unit} of a batch."
        found.append(note(message))
    _try_metrics(pipeline, first)
    if pipeline.encoder.settings.loss != PLAIN and OWN_LOSS in found:
        raise UsageError(
            "loss.class_weights and loss.label_smoothing have no effect: the model computes its "
            "own loss.",
            "Let forward return logits, or leave them out.",
        )
    return first, found


def _try_metrics(pipeline: Pipeline, first: FirstPass) -> None:
    """Raise what fails of the user's metrics that read outputs and batch."""
    import torch

    for metric in pipeline.task.metrics.values():
        if not isinstance(metric, OwnLoss):
            continue
        try:
            with torch.no_grad():
                metric(first.outputs, first.batch)
        except OwnLossError as error:
            raise METRIC_FAILED.error(error.message, fix=error.fix) from error
        except Exception as error:
            fix = (
                f"Let it be f(outputs, batch); the batch has {', '.join(own_columns(first.batch))}."
            )
            message = f"{metric.name} raised {describe_error(error)}"
            raise METRIC_FAILED.error(message, fix=fix) from error


def expected_outputs(pipeline: Pipeline) -> ExpectedOutputs | None:
    """Return the scores that the task needs of a model; None where it does not say."""
    head = pipeline.task.head_for(pipeline.encoder)
    if head is None or head.size is None or head.body == "steps":
        return None
    classes = pipeline.encoder.classes
    size = head.size(pipeline.encoder)
    return ExpectedOutputs(size, head.unit, head.per_pixel, classes=classes)


def probe_training_device(d: Draft) -> list[Finding]:
    """Run the first batch where and as this machine trains it."""
    device, dtype = training_device(), d.lower_dtype
    if device.type == "cpu" and dtype is not None and why_not(d.plan.precision) is not None:
        return []
    batch, _ = _probe_batch(d.pipeline, d.train)
    return check_on_device(d.pipeline, batch, device, dtype)


def _first_of_class(train: Store, table: Table, first: int) -> Mapping[str, Any]:
    """File and row of the first training row with a class from number `first` on."""
    several = train.fields["labels"].numpy_dtype.kind == "f"
    for row in range(len(train)):
        own = train.value("labels", row)
        if bool((own[first:] > 0.5).any() if several else (own >= first).any()):
            where: Mapping[str, Any] = table.where(int(train.source_row[row]))
            return where
    return {}


def probe_model(d: Draft) -> list[Finding]:
    """Return all other probes: on the weights that probes use, and on the real ones."""
    longer, trained = d.config.probes == "all", make_profile(d.pipeline, d.train, d.first)
    found = run_probes(d.profile, longer, trained)
    return [*found, *_reload(d.built, trained)] if longer or d.config.rehearse else found


def make_profile(pipeline: Pipeline, train: Store, first: FirstPass | None = None) -> ModelProfile:
    """Return the passes of a Pipeline on a few rows; `first` has been run."""
    batch, _ = _probe_batch(pipeline, train)
    head = pipeline.task.head_for(pipeline.encoder)
    alone: tuple[Any, ...] = ()
    read = pipeline.task.reads.input_of(pipeline.encoder.roles)
    if pipeline.collate_fn is None and pipeline.task.figures.loss_by is None:
        alone = tuple(pipeline.collate([row]) for row in probe_rows(pipeline, train))
    profile = ModelProfile(
        pipeline.module,
        batch,
        forward=pipeline.outputs,
        loss=pipeline.by_sequence.loss,
        fields={**well_known_fields(), **pipeline.fields},
        causal=head is not None and head.predicts == "next_token",
        alone=alone,
        inputs=_input_columns(pipeline),
        more=partial(_more_batches, pipeline, train),
        may_draw=pipeline.task.reads.own_fields is not None,
        shifts_labels=pipeline.counts_in_loss,
        one_length="" if read is None else read.one_length,
    )
    if first is not None:
        profile.together, profile.has_gradient = first.outputs, first.has_gradient
    return profile


def _more_batches(pipeline: Pipeline, train: Store) -> Iterator[Mapping[str, Any]]:
    """Batches of rows from all over the training set, no larger than a few long rows."""
    rows = np.unique(np.linspace(0, len(train) - 1, MORE_ROWS).astype(int))
    longest = min(int(train.lengths.max()), _token_limit(pipeline))
    size = max(2, MORE_POSITIONS // max(longest, 1))
    for start in range(0, len(rows), size):
        yield _probe_batch(pipeline, train, rows[start : start + size])[0]


def _input_columns(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the columns that `forward` names; all of them where it takes any, as peft's does."""
    named = inspect.signature(pipeline.module.forward).parameters
    given = pipeline.call.arguments
    return tuple(c for a, c in given.items() if a in named) or tuple(given.values())


def choose_loss_terms(d: Draft) -> tuple[Choices, list[Finding]]:
    """Return whether the model's auxiliary loss is added in training, as the plan stores it."""
    pipeline, profile = d.probed, d.profile
    if pipeline.collate_fn is not None or pipeline.counts_in_loss:
        return Choices(), []
    with preserved_state(pipeline.module):
        loss = with_module_loss(pipeline.task.loss)
        added, found = compare_losses(profile, pipeline.call, loss)
    return Choices(auxiliary_loss=bool(added)), found


def choose_row_groups(d: Draft) -> tuple[Choices, list[Finding]]:
    """How rows are batched in evaluation, prediction and generation, as the plan stores it."""
    pipeline, profile, train = d.probed, d.profile, d.train
    generates = d.config.generate.rows > 0 and len(d.validation) > 0
    if pipeline.collate_fn is not None:
        return Choices(), []
    forward: Together = "padded"
    with suppress(Exception):  # the probe of padding reports it
        if profile.padding_effect > tolerance(next(pipeline.module.parameters())):
            forward = "equal_length"
    with preserved_state(pipeline.module):
        generation, found = _choose_generation(pipeline, train, generates)
    return Choices(row_groups=RowGroups(forward, generation)), found


def _choose_generation(
    pipeline: Pipeline, train: Store, generates: bool
) -> tuple[Together, list[Finding]]:
    module, encoder, generate = pipeline.module, pipeline.encoder, pipeline.task.generate
    if generate is None or not generate.possible(module, encoder):
        return "padded", []
    answer = generate.answer
    longest, shortest = int(train.lengths.argmax()), int(train.lengths.argmin())
    prompts = train.value("input_ids", longest), train.value("input_ids", shortest)
    with quiet_transformers(), without_router_logits(module):
        try:
            return choose_generation(
                module, lambda rows, count: answer(module, rows, encoder, count), prompts
            )
        except Exception as error:  # the model's own code may fail in any way
            batched = error
        try:
            answer(module, [train.row(shortest)], encoder, NEW_TOKENS)
        except Exception as error:
            if not (generates and generate.names):  # prediction reports it
                return "padded", []
            message = f"The model fails to generate an answer: {describe_error(error)[:200]}"
            return "padded", [GENERATION_FAILS.finding(message)]
    message = (
        f"The model fails on a padded batch of prompts ({type(batched).__name__}). Evaluation and "
        "prediction generate for one prompt at a time."
    )
    return "single", [note(message)]


def _reload(built: Built, profile: ModelProfile) -> list[Finding]:
    pipeline, trusted = built.pipeline, built.source.trust_remote_code

    def save(folder: Path) -> None:
        save_model(pipeline.module, pipeline.encoder, built.source, folder)

    def load(folder: Path) -> Any:
        code = RunCode(folder, trust_remote_code=trusted)
        other = copy.deepcopy(pipeline.module) if needs_module(folder) else None
        return load_model(folder, pipeline.task, code, other)[0]

    return check_reload(profile, save, load, pipeline.call)


def find_unreached(d: Draft) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """Return the adapter weights that the loss does not depend on."""
    adapted = d.built.adaptation.trained if d.built.adaptation is not None else ()
    return tuple(name for name in d.first.without_gradient if name in adapted), ()


def freeze_unreached(d: Draft) -> tuple[Built, list[Finding]]:
    """Freeze the adapters that the loss does not depend on, such as those of an unused pooler."""
    built, adaptation, module, lost = d.built, d.built.adaptation, d.pipeline.module, d.unreached
    if adaptation is None or not lost:
        return built, []
    if all(name in lost for name in adaptation.trained if ".lora_" in name):
        raise NO_LORA_TARGET.error(
            f"None of the adapters on {len(adaptation.targets)} layers takes part in the loss.",
            fix="Train the whole model (leave lora.r out), or name other layers in lora.targets.",
        )
    for name in lost:
        module.get_parameter(name).requires_grad_(False)
    shown = ", ".join(lost[:3]) + (" …" if len(lost) > 3 else "")
    message = f"{len(lost)} adapter weights are left as they are: {shown}"
    trained = replace(adaptation, trained=adaptation.trained - frozenset(lost))
    return replace(built, adaptation=trained), [note(message)]


def _probe_batch(pipeline: Pipeline, train: Store, rows: Any = None) -> tuple[Any, float]:
    """Return a batch of the longest and the shortest row, or of `rows`; and what its loss is
    divided by.

    Where the vocabulary is large or activations are thrown away in training, only the end of long
    rows is taken: a probe has all of them at once, and must not hold more memory than training.
    """
    rows = _chosen_rows(train) if rows is None else rows
    if pipeline.collate_fn is not None or _token_limit(pipeline) >= train.lengths[rows].max():
        return pipeline.batch(train, rows), pipeline.divisor(train, rows)
    cut = _cut_rows(pipeline, train, rows)
    num_targets = sum(pipeline.task.count_targets(row) for row in cut)
    batch = pipeline.collate(probe_rows(pipeline, train, rows)) | {NUM_TARGETS: num_targets}
    labels = lambda: np.concatenate([np.ravel(row["labels"]) for row in cut])  # noqa: E731
    return batch, pipeline.divisor_of(num_targets, labels)


def _chosen_rows(train: Store) -> Any:
    longest, shortest = int(train.lengths.argmax()), int(train.lengths.argmin())
    if longest == shortest:  # all of one length; two rows are needed to see each other
        some = np.unique(np.linspace(0, len(train) - 1, MORE_ROWS).astype(int))
        sizes = [sum(value.size for value in row.values()) for row in train.rows(some)]
        longest, shortest = int(some[np.argmax(sizes)]), int(some[-1 - np.argmin(sizes[::-1])])
    return np.unique([longest, shortest])


def _token_limit(pipeline: Pipeline) -> int:
    """Return how many tokens of a row a probe reads."""
    from torch.nn.parameter import is_lazy

    fields = pipeline.fields
    if "labels" not in fields or not starts_in_time(fields["labels"]):
        return np.iinfo(np.int32).max
    if is_checkpointing(pipeline.module):  # which it does in training only
        return PROBE_TOKENS
    weights = (w for w in pipeline.module.parameters() if not is_lazy(w))
    size = sum(map(num_weights, weights))
    affordable = min(PROBE_LOGITS // (pipeline.vocab_size or 1), PROBE_PRODUCTS // max(size, 1))
    return max(PROBE_TOKENS, affordable)


def _cut_rows(pipeline: Pipeline, train: Store, rows: Any) -> list[Mapping[str, Any]]:
    """Return the last steps of each sequence of the rows, which is where answers are.

    Every second row gets half as many, so that a batch has padding.
    """
    limit, fields = _token_limit(pipeline), pipeline.fields
    sizes = itertools.cycle((limit, limit // 2))
    return [
        cut_row(row, fields, size, from_end=True)
        for row, size in zip(train.rows(rows), sizes, strict=False)
    ]


def probe_rows(pipeline: Pipeline, train: Store, chosen: Any = None) -> list[Mapping[str, Any]]:
    """Return the rows of the probe batch, or those chosen, as they are collated."""
    chosen = _chosen_rows(train) if chosen is None else chosen
    prepare, rows = pipeline.prepare, _cut_rows(pipeline, train, chosen)
    if pipeline.collate_fn is not None:  # which may need them whole
        rows = [*train.rows(chosen)]
    if prepare is None:
        return rows
    numbers = ((int(train.source_row[n]), int(train.copy[n])) for n in chosen)
    return [prepare(row, 0, *number) for row, number in zip(rows, numbers, strict=True)]
