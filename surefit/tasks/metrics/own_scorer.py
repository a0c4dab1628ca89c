"""A user's own scorer of generated text, beside the task's metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from surefit.errors import RunFailedError, UsageError, describe_error
from surefit.tasks.task_spec import Sample, TaskSpec

Scorer = Callable[[str, str], Any]
"""`scorer(expected, got)` gives a number, or a dict of numbers by name; more is better."""


def with_scorer(task: TaskSpec, scorer: Scorer, example: str | None = None) -> TaskSpec:
    """The task with the means of `scorer` among its metrics.

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
    """What a scorer's single number is called: the function's name."""
    return getattr(scorer, "__name__", type(scorer).__name__).strip("<>")


def score(scorer: Scorer, expected: str, got: str) -> dict[str, float]:
    """The scorer's figures for one answer; a RunFailedError where they are none."""
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
