"""The figures an evaluation will have, known before the first step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.config import MetricChoice
from surefit.errors import RunFailedError, UsageError
from surefit.findings import Finding, note, rule
from surefit.gigabytes import show_size
from surefit.inputs.encoder import Encoder
from surefit.inputs.store import Store
from surefit.plan.augmentation import own_function
from surefit.processes import num_processes
from surefit.targets.metrics.class_metrics import class_metric
from surefit.targets.metrics.own_metric import OwnMetric, with_metrics, with_scorer
from surefit.targets.task_spec import TaskSpec, better_of
from surefit.user_code import CodeGate
from surefit.user_code.named_code import source_file

if TYPE_CHECKING:
    from surefit.plan.draft import Draft


def check_metric(metric: str | None, task: TaskSpec) -> None:
    """Refuse a metric to watch that the task does not have, that is no single number, or of which
    nobody has said whether higher or lower is better."""
    if metric is not None and metric not in task.watchable_metrics:
        asked = task.figures.class_scores and class_metric(metric, task.figures.class_scores)
        more = f" Or add it: --set metrics={metric}." if asked and asked.is_number else ""
        raise UsageError(
            f"early_stopping.metric is {metric!r}, which {task.name} cannot watch.",
            f"Choose one of: {', '.join(task.watchable_metrics)}.{more}",
        )
    best = metric or task.figures.best
    if best in task.watchable_metrics and better_of(task, best) is None:
        raise UsageError(
            f"The best step goes by {best!r}, and it is not known whether higher or lower is "
            "better.",
            f"State it: --set metrics.{best}.better=higher, or lower.",
        )


def find_scorer(d: Draft) -> tuple[Callable[[str, str], Any] | None, list[Finding]]:
    """Return the user's scorer and a task that uses it; else the task's own metric is watched."""
    name, code = d.config.generate.scorer, d.request.code
    scorer, found = own_function("generate.scorer", name, d.objects.scorer, code)
    if scorer is None:
        check_metric(d.watched, d.task)
    else:
        with_scorer(d.task, scorer)
    return scorer, found


def try_scorer(
    scorer: Callable[[str, str], Any] | None, task: TaskSpec, evaluation: Store, encoder: Encoder
) -> TaskSpec:
    """Return the task with the scorer, which has been tried on the first expected answer."""
    if scorer is None:
        return task
    if len(evaluation) == 0 or encoder.tokenizer is None:
        return with_scorer(task, scorer)
    labels = evaluation.value("labels", 0)
    expected = encoder.tokenizer.decode(labels[labels >= 0], skip_special_tokens=True).strip()
    try:
        return with_scorer(task, scorer, expected)
    except RunFailedError as error:
        raise METRIC_FAILED.error(error.message, fix=error.fix) from error


def check_watched(d: Draft) -> None:
    """Refuse to watch a score of generated text where no text will be generated."""
    pipeline, metric, generate = (
        d.pipeline,
        d.watched,
        d.pipeline.task.generate,
    )
    check_metric(metric, pipeline.task)
    if generate is None or metric not in generate.names:
        return
    if d.config.generate.rows == 0:
        raise UsageError(
            f"early_stopping.metric is {metric!r}, but generate.rows is 0.",
            "Generate for some rows, or watch another metric.",
        )
    if not generate.possible(pipeline.module, pipeline.encoder):
        raise UsageError(
            f"early_stopping.metric is {metric!r}, but {d.source.name} cannot generate text.",
            "Watch another metric, such as loss.",
        )


MAJORITY_SHARE = 0.8
"""From this share of one class on, accuracy says little about the others."""
RATIO = 20
"""From this ratio of the largest class to the smallest one on, the smallest hardly counts."""


def choose_best_metric(d: Draft) -> tuple[TaskSpec, list[Finding]]:
    """Return the task, with macro_f1 as best metric where accuracy would hide rare classes."""
    task, encoder, asked = d.task, d.encoder, d.watched
    labels = encoder.target.classes
    counts = labels.counts if labels is not None and labels.counts else (1,)
    total, largest, smallest = sum(counts), max(counts), min(counts)
    share = largest / max(total, 1)
    strong = share >= MAJORITY_SHARE or largest >= RATIO * max(smallest, 1)
    several = labels is not None and labels.several
    if several or not strong or task.figures.best != "accuracy" or "macro_f1" not in task.metrics:
        return task, []
    names = encoder.classes
    message = (
        f"Class {names[counts.index(largest)]!r} has {largest:,} of {total:,} training rows "
        f"({share:.0%}), class {names[counts.index(smallest)]!r} {smallest:,}."
    )
    if asked is not None:
        return task, [note(f"{message} The best step goes by {asked}.")]
    found = note(f"{message} The best step goes by macro_f1.")
    return replace(task, figures=replace(task.figures, best="macro_f1")), [found]


METRIC_FAILED = rule(
    "SF296",
    "error",
    "your own metric or scorer failed",
    why="It was tried on the labels of the validation rows with random predictions, on the first "
    "batch (task custom) or on an expected answer, and would fail at each evaluation.",
    fix="Let a metric take (predictions, labels), or (outputs, batch) with the task custom, a "
    "scorer (expected, got); return a number, or numbers by name.",
)

METRIC_KEEPS_PREDICTIONS = rule(
    "SF297",
    "warning",
    "a metric keeps all predictions",
    why="A function of all predictions needs them in memory at once, so that the memory of an "
    "evaluation grows with the validation rows. It is counted in the plan.",
    fix="Nothing to do if it fits; else use a built-in metric, or an object with update, compute "
    "and reset that keeps sums.",
    accept="The predictions are kept.",
)

MAX_TRIED = 20_000
"""Labels that a metric is tried on."""


def choose_metrics(
    chosen: Mapping[str, MetricChoice],
    passed: Mapping[str, Any] | None,
    code: CodeGate,
    task: TaskSpec,
) -> tuple[TaskSpec, list[Finding]]:
    """Return the task with the metrics that are named in the config or passed from Python."""
    own, found = dict(passed or {}), []
    for name, choice in chosen.items():
        if choice.function is not None:
            own[name] = code.find(choice.function)
            message = f"metrics.{name}: {choice.function} is run."
            found.append(note(message, file=source_file(own[name])))
    every = {**{name: MetricChoice() for name in own}, **chosen}
    return with_metrics(task, every, own), found


def try_metrics(d: Draft) -> tuple[int, list[Finding]]:
    """Return the bytes that the user's own metrics keep in an evaluation; raise what fails."""
    task, validation, encoder = d.task, d.validation, d.pipeline.encoder
    if not task.figures.own_metrics or not len(validation):
        return 0, []
    head = task.head_for(encoder)
    size = head.size(encoder) if head is not None and head.size is not None else 1
    values = _random_values(task, validation, encoder, size)
    if values is not None:
        for name, metric in task.figures.own_metrics.items():
            figure = _try(metric, *values)
            if name == d.watched and not isinstance(figure, float):
                message = f"early_stopping.metric is {name!r}, which gives several numbers."
                raise METRIC_FAILED.error(message, fix="Watch a metric that gives one number.")
    keeping = [
        name for name, each in task.figures.own_metrics.items() if each.keeps(num_processes())
    ]
    if not keeping:
        return 0, []
    count = int(validation.num_targets.sum())
    kept = 2 * count * (8 + 8 * size)  # in parts and together
    message = (
        f"{', '.join(map(repr, keeping))} of metrics keeps the predictions for all {count:,} "
        f"validation targets: {show_size(kept)}."
    )
    return kept, [METRIC_KEEPS_PREDICTIONS.finding(message)]


def _try(metric: OwnMetric, predictions: Any, labels: Any) -> Any:
    tried = metric.start()
    try:
        tried.add(predictions, labels)
        return tried.figure()
    except RunFailedError as error:
        raise METRIC_FAILED.error(error.message, fix=error.fix) from error


def _random_values(task: TaskSpec, store: Store, encoder: Encoder, size: int) -> Any:
    """Return random predictions for real labels, as evaluation has them; else None."""
    import torch

    field = store.fields.get("labels")
    if field is None or task.figures.predicted_values is None:
        return None
    rows = np.arange(min(len(store), MAX_TRIED))
    labels = torch.from_numpy(np.array(store.joined("labels", rows)))
    if field.rank:
        labels = labels.reshape(-1, size) if "class" in field.axes else labels[None]
    shape = labels.shape if "class" in field.axes else (*labels.shape, size)
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    try:
        return task.figures.predicted_values(
            SimpleNamespace(logits=logits), {"labels": labels}, encoder
        )
    except Exception:  # a task of the user's own, with other outputs
        return None


def describe_metrics(task: TaskSpec, chosen: Mapping[str, MetricChoice]) -> dict[str, Any]:
    """Return the metrics that were asked for, as the plan has them."""
    names = [*dict.fromkeys((*chosen, *task.figures.own_metrics))]
    return {
        name: {
            "function": chosen[name].function if name in chosen else None,
            "better": better_of(task, name),
            "keeps_predictions": name in task.figures.own_metrics
            and task.figures.own_metrics[name].keeps(num_processes()),
        }
        for name in names
    }
