"""The metrics that a run asks for: found, tried before training, and their memory counted."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from surefit.config import MetricChoice
from surefit.encode.encoder import Encoder
from surefit.encode.store import Store
from surefit.errors import RunFailedError
from surefit.findings import Finding, rule
from surefit.gigabytes import show_size
from surefit.processes import num_processes
from surefit.tasks.metrics.chosen_metrics import with_metrics
from surefit.tasks.metrics.own_metric import OwnMetric
from surefit.tasks.task_spec import TaskSpec, better_of
from surefit.user_code import OWN_CODE_RUN, CodeGate
from surefit.user_code.named_code import source_file

METRIC_FAILED = rule(
    "SF296",
    "error",
    "your own metric failed",
    why="It was tried on the labels of the validation rows with random predictions, and would fail "
    "at each evaluation.",
    fix="Let it take (predictions, labels) and return a number, or numbers by name.",
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
    """The task with the metrics that are named in the config or passed from Python."""
    own, found = dict(passed or {}), []
    for name, choice in chosen.items():
        if choice.function is not None:
            own[name] = code.find(choice.function)
            message = f"metrics.{name}: {choice.function} is run."
            found.append(OWN_CODE_RUN.finding(message, file=source_file(own[name])))
    every = {**{name: MetricChoice() for name in own}, **chosen}
    return with_metrics(task, every, own), found


def try_metrics(
    task: TaskSpec, validation: Store, encoder: Encoder, watched: str | None
) -> tuple[int, list[Finding]]:
    """Bytes that the user's own metrics keep in an evaluation; those that fail are raised."""
    if not task.own_metrics or not len(validation):
        return 0, []
    head = task.head_for(encoder)
    size = head.size(encoder) if head is not None and head.size is not None else 1
    values = _random_values(task, validation, encoder, size)
    if values is not None:
        for name, metric in task.own_metrics.items():
            figure = _try(metric, *values)
            if name == watched and not isinstance(figure, float):
                message = f"early_stopping.metric is {name!r}, which gives several numbers."
                raise METRIC_FAILED.error(message, fix="Watch a metric that gives one number.")
    keeping = [name for name, each in task.own_metrics.items() if _keeps(each)]
    if not keeping:
        return 0, []
    count = int(validation.num_targets.sum())
    kept = 2 * count * (8 + 8 * size)  # in parts and together
    message = (
        f"{', '.join(map(repr, keeping))} of metrics keeps the predictions for all {count:,} "
        f"validation targets: {show_size(kept)}."
    )
    return kept, [METRIC_KEEPS_PREDICTIONS.finding(message)]


def _keeps(metric: OwnMetric) -> bool:
    return metric.keeps_all or num_processes() > 1


def _try(metric: OwnMetric, predictions: Any, labels: Any) -> Any:
    tried = metric.start()
    try:
        tried.add(predictions, labels)
        return tried.figure()
    except RunFailedError as error:
        raise METRIC_FAILED.error(error.message, fix=error.fix) from error


def _random_values(task: TaskSpec, store: Store, encoder: Encoder, size: int) -> Any:
    """Random predictions for real labels, as evaluation gives them; None for other tasks' forms."""
    import torch

    field = store.fields.get("labels")
    if field is None or task.predicted_values is None:
        return None
    rows = np.arange(min(len(store), MAX_TRIED))
    labels = torch.from_numpy(np.array(store.joined("labels", rows)))
    if field.rank:
        labels = labels.reshape(-1, size) if "class" in field.axes else labels[None]
    shape = labels.shape if "class" in field.axes else (*labels.shape, size)
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    try:
        return task.predicted_values(SimpleNamespace(logits=logits), {"labels": labels}, encoder)
    except Exception:  # a task of the user's own, with other outputs
        return None


def describe_metrics(task: TaskSpec, chosen: Mapping[str, MetricChoice]) -> dict[str, Any]:
    """The metrics that were asked for, as the plan has them."""
    names = [*dict.fromkeys((*chosen, *task.own_metrics))]
    return {
        name: {
            "function": chosen[name].function if name in chosen else None,
            "better": better_of(task, name),
            "keeps_predictions": name in task.own_metrics and _keeps(task.own_metrics[name]),
        }
        for name in names
    }
