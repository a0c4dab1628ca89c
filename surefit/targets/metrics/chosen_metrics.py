"""The metrics that a run asks for beside those of its task, and the user's scorer of text."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from surefit.config import MetricChoice
from surefit.errors import RunFailedError, UsageError, describe_error
from surefit.targets.generation import Sample
from surefit.targets.metrics.class_metrics import CLASS_METRICS, class_metric
from surefit.targets.metrics.own_metric import (
    OwnMetric,
    direction_of,
    is_object,
    make_own_metric,
)
from surefit.targets.own_loss import OwnLoss
from surefit.targets.task_spec import Better, Metric, TaskSpec


def with_metrics(
    task: TaskSpec, chosen: Mapping[str, MetricChoice], own: Mapping[str, Any]
) -> TaskSpec:
    """Return the task with the metrics that a config names; `own` has the code of those that are
    named as module:function or passed from Python.
    """
    built: dict[str, Any] = dict(task.metrics)
    mine: dict[str, OwnMetric] = dict(task.figures.own_metrics)
    better: dict[str, Better] = dict(task.figures.better)
    for name, choice in chosen.items():
        if choice.better is not None:
            better[name] = choice.better
        if name in own and task.figures.reads_outputs:
            built[name] = _of_outputs(task, name, own[name])
        elif name in own:
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
    figures = replace(task.figures, own_metrics=mine, better=better)
    return replace(task, metrics=built, figures=figures)


def _of_outputs(task: TaskSpec, name: str, found: Any) -> OwnLoss:
    """Return a metric that reads outputs and batch, and returns what a `loss_fn` does."""
    if name in task.metric_names:
        message = f"metrics.{name}: {task.name} has a metric of this name."
        raise UsageError(message, "Give your metric another name.")
    if not callable(found) or is_object(found):
        raise UsageError(
            f"metrics.{name} is a {type(found).__name__}; {task.name} has metrics that are "
            "functions.",
            "Let it be f(outputs, batch) -> a mean over rows, or (sum, count).",
        )
    return OwnLoss(found, f"metrics.{name}")


def _own(task: TaskSpec, name: str, found: Any) -> OwnMetric:
    if name in task.metric_names:
        raise UsageError(
            f"metrics.{name}: {task.name} has a metric of this name.",
            "Give your metric another name.",
        )
    if task.figures.predicted_values is None:
        raise UsageError(
            f"metrics.{name} needs a class or a number per target, and {task.name} predicts "
            "neither.",
            "For generated text, name a generate.scorer(expected, got); for a task of your own, "
            "put the metric into its TaskSpec.",
        )
    return make_own_metric(name, found)


def _built_in(task: TaskSpec, name: str) -> Metric:
    known = [*CLASS_METRICS, "top5"]
    if task.figures.class_scores is None:
        reason = f"{task.name} predicts no classes" if name in known else "there is no such metric"
        has = ", ".join(task.metric_names)
        raise UsageError(
            f"metrics: {name}: {reason}.",
            f"{task.name} has {has}; your own is named as metrics.{name}=module:function.",
        )
    found = class_metric(name, task.figures.class_scores)
    if found is None:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UsageError(
            f"metrics: there is no metric {name!r}.{hint}",
            f"Built in are {', '.join(known)}; your own: metrics.{name}=module:function.",
        )
    return found


Scorer = Callable[[str, str], Any]
"""`scorer(expected, got)` gives a number, or a dict of numbers by name; more is better."""


def with_scorer(task: TaskSpec, scorer: Scorer, example: str | None = None) -> TaskSpec:
    """Return the task with the means of `scorer` among its metrics.

    The names of a scorer that returns a dict are found by calling it on `example`.
    """
    generate = task.generate
    if generate is None or not generate.names:
        raise UsageError(
            f"generate.scorer scores generated text, and {task.name} generates none.",
            "Leave it out, or choose a task that does, such as sft or seq2seq.",
        )
    names = (score_name(scorer),) if example is None else (*score(scorer, example, example),)
    taken = next((name for name in names if name in task.metric_names), None)
    if taken is not None:
        raise UsageError(
            f"The scorer gives {taken!r}, which {task.name} has already.",
            "Give the score another name.",
        )

    def scores(sample: Sample) -> dict[str, float]:
        return {**generate.scores(sample), **score(scorer, sample.expected or "", sample.got)}

    return replace(task, generate=replace(generate, scores=scores, names=(*generate.names, *names)))


def score_name(scorer: Scorer) -> str:
    """Return what a scorer's single number is called: the function's name."""
    return getattr(scorer, "__name__", type(scorer).__name__).strip("<>")


def score(scorer: Scorer, expected: str, got: str) -> dict[str, float]:
    """Return the scorer's figures for one answer; a RunFailedError where they are none."""
    name, shown = score_name(scorer), f"expected {expected[:80]!r}, got {got[:80]!r}"
    fix = "Let it return a number, or a dict of numbers by name, for any two texts."
    try:
        made = scorer(expected, got)
        named = made if isinstance(made, Mapping) else {name: made}
        figures = {str(key): float(value) for key, value in named.items()}
    except Exception as error:
        what = f"{describe_error(error)}"[:200]
        raise RunFailedError(f"The scorer {name} failed on {shown}: {what}", fix) from error
    wrong = next((key for key, value in figures.items() if not math.isfinite(value)), None)
    if wrong is not None or not figures:
        raise RunFailedError(f"The scorer {name} gave {made!r} for {shown}.", fix)
    return figures
