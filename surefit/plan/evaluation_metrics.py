"""The figures an evaluation will have, known before the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from surefit.config import RunConfig
from surefit.encode.encoder import Encoder
from surefit.encode.store import Store
from surefit.errors import RunFailedError, UsageError
from surefit.findings import Finding, rule
from surefit.plan.augmentation import own_function
from surefit.plan.build_model import Fitted
from surefit.plan.plan import Given
from surefit.tasks.metrics.own_scorer import with_scorer
from surefit.tasks.task_spec import TaskSpec

SCORER_FAILED = rule(
    "SF290",
    "error",
    "the scorer failed",
    why="It was tried on an expected answer before training, and would fail at each evaluation.",
    fix="Let it take (expected, got) and return a number, or a dict of numbers by name.",
)


def check_metric(metric: str | None, task: TaskSpec) -> None:
    """Refuse a metric to watch that the task does not have, or that is no single number."""
    if metric is not None and metric not in task.watchable_metrics:
        raise UsageError(
            f"early_stopping.metric is {metric!r}, which {task.name} cannot watch.",
            f"Choose one of: {', '.join(task.watchable_metrics)}.",
        )


def find_scorer(
    config: RunConfig, given: Given, task: TaskSpec, found: list[Finding]
) -> Callable[[str, str], Any] | None:
    """The user's scorer, and a task that can use it; else the metric to watch is the task's own."""
    name = config.generate.scorer
    scorer = own_function("generate.scorer", name, given.scorer, given, found)
    if scorer is None:
        check_metric(config.early_stopping.metric, task)
    else:
        with_scorer(task, scorer)
    return scorer


def try_scorer(
    scorer: Callable[[str, str], Any] | None, task: TaskSpec, evaluation: Store, encoder: Encoder
) -> TaskSpec:
    """The task with the scorer, which has been tried on the first expected answer."""
    if scorer is None:
        return task
    if len(evaluation) == 0 or encoder.tokenizer is None:
        return with_scorer(task, scorer)
    labels = evaluation.value("labels", 0)
    expected = encoder.tokenizer.decode(labels[labels >= 0], skip_special_tokens=True).strip()
    try:
        return with_scorer(task, scorer, expected)
    except RunFailedError as error:
        raise SCORER_FAILED.error(error.message, fix=error.fix) from error


def check_watched(config: RunConfig, task: TaskSpec, fitted: Fitted) -> None:
    """Refuse to watch a score of generated text where no text will be generated."""
    metric, generate = config.early_stopping.metric, task.generate
    check_metric(metric, task)
    if generate is None or metric not in generate.names:
        return
    if config.generate.rows == 0:
        raise UsageError(
            f"early_stopping.metric is {metric!r}, but generate.rows is 0.",
            "Generate for some rows, or watch another metric.",
        )
    if not generate.possible(fitted.module, fitted.encoder):
        raise UsageError(
            f"early_stopping.metric is {metric!r}, but {fitted.source.name} cannot generate text.",
            "Watch another metric, such as loss.",
        )
