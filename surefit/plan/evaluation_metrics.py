"""The figures an evaluation will have, known before the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from surefit.encode.encoder import Encoder
from surefit.encode.store import Store
from surefit.errors import RunFailedError, UsageError
from surefit.findings import Finding, rule
from surefit.pipeline.pipeline import Pipeline
from surefit.plan.augmentation import own_function
from surefit.tasks.metrics.class_metrics import class_metric
from surefit.tasks.metrics.own_scorer import with_scorer
from surefit.tasks.task_spec import TaskSpec, better_of
from surefit.user_code import CodeGate

SCORER_FAILED = rule(
    "SF290",
    "error",
    "the scorer failed",
    why="It was tried on an expected answer before training, and would fail at each evaluation.",
    fix="Let it take (expected, got) and return a number, or a dict of numbers by name.",
)


def check_metric(metric: str | None, task: TaskSpec) -> None:
    """Refuse a metric to watch that the task does not have, that is no single number, or of which
    nobody has said whether higher or lower is better."""
    if metric is not None and metric not in task.watchable_metrics:
        asked = task.class_scores and class_metric(metric, task.class_scores)
        more = f" Or add it: --set metrics={metric}." if asked and asked.is_number else ""
        raise UsageError(
            f"early_stopping.metric is {metric!r}, which {task.name} cannot watch.",
            f"Choose one of: {', '.join(task.watchable_metrics)}.{more}",
        )
    best = metric or task.best
    if best in task.watchable_metrics and better_of(task, best) is None:
        raise UsageError(
            f"The best step goes by {best!r}, and it is not known whether higher or lower is "
            "better.",
            f"State it: --set metrics.{best}.better=higher, or lower.",
        )


def find_scorer(
    name: str | None,
    passed: Callable[[str, str], Any] | None,
    code: CodeGate,
    task: TaskSpec,
    metric: str | None,
) -> tuple[Callable[[str, str], Any] | None, list[Finding]]:
    """The user's scorer, and a task that can use it; else the metric to watch is the task's own."""
    scorer, found = own_function("generate.scorer", name, passed, code)
    if scorer is None:
        check_metric(metric, task)
    else:
        with_scorer(task, scorer)
    return scorer, found


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


def check_watched(
    metric: str | None, generated_rows: int, pipeline: Pipeline, model_name: str
) -> None:
    """Refuse to watch a score of generated text where no text will be generated."""
    generate = pipeline.task.generate
    check_metric(metric, pipeline.task)
    if generate is None or metric not in generate.names:
        return
    if generated_rows == 0:
        raise UsageError(
            f"early_stopping.metric is {metric!r}, but generate.rows is 0.",
            "Generate for some rows, or watch another metric.",
        )
    if not generate.possible(pipeline.module, pipeline.encoder):
        raise UsageError(
            f"early_stopping.metric is {metric!r}, but {model_name} cannot generate text.",
            "Watch another metric, such as loss.",
        )
