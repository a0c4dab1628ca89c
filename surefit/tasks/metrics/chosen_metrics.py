"""The metrics that a run asks for, beside those of its task."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from surefit.config import MetricChoice
from surefit.errors import UsageError
from surefit.tasks.metrics.class_metrics import CLASS_METRICS, class_metric
from surefit.tasks.metrics.own_metric import OwnMetric, direction_of, make_own_metric
from surefit.tasks.task_spec import Better, Metric, TaskSpec


def with_metrics(
    task: TaskSpec, chosen: Mapping[str, MetricChoice], own: Mapping[str, Any]
) -> TaskSpec:
    """The task with the metrics that a config names; `own` has the code of those that are named
    as module:function or passed from Python."""
    built: dict[str, Any] = dict(task.metrics)
    mine: dict[str, OwnMetric] = dict(task.own_metrics)
    better: dict[str, Better] = dict(task.better)
    for name, choice in chosen.items():
        if choice.better is not None:
            better[name] = choice.better
        if name in own:
            mine[name] = _own(task, name, own[name])
            said = direction_of(mine[name].measure)
            if said is not None and choice.better not in (None, said):
                raise UsageError(
                    f"metrics.{name}.better is {choice.better}, but its higher_is_better says "
                    f"{said}.",
                    "Leave it out.",
                )
            if said is not None:
                better[name] = "higher" if said == "higher" else "lower"
        elif name not in task.metric_names and choice.function is None:
            built[name] = _built_in(task, name)
    return replace(task, metrics=built, own_metrics=mine, better=better)


def _own(task: TaskSpec, name: str, found: Any) -> OwnMetric:
    if name in task.metric_names:
        raise UsageError(
            f"metrics.{name}: {task.name} has a metric of this name.",
            "Give your metric another name.",
        )
    if task.predicted_values is None:
        raise UsageError(
            f"metrics.{name} needs a class or a number per target, and {task.name} predicts "
            "neither.",
            "For generated text, name a generate.scorer(expected, got); for a task of your own, "
            "put the metric into its TaskSpec.",
        )
    return make_own_metric(name, found)


def _built_in(task: TaskSpec, name: str) -> Metric:
    known = [*CLASS_METRICS, "top5"]
    if task.class_scores is None:
        reason = f"{task.name} predicts no classes" if name in known else "there is no such metric"
        has = ", ".join(task.metric_names)
        raise UsageError(
            f"metrics: {name}: {reason}.",
            f"{task.name} has {has}; your own is named as metrics.{name}=module:function.",
        )
    found = class_metric(name, task.class_scores)
    if found is None:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UsageError(
            f"metrics: there is no metric {name!r}.{hint}",
            f"Built in are {', '.join(known)}; your own: metrics.{name}=module:function.",
        )
    return found
