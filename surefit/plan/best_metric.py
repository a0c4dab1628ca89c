"""Which metric decides the best step: of imbalanced classes, macro_f1 instead of accuracy."""

from __future__ import annotations

from dataclasses import replace

from surefit.encode.encoder import Encoder
from surefit.findings import Finding, rule
from surefit.tasks.task_spec import TaskSpec

IMBALANCED_CLASSES = rule(
    "SF239",
    "info",
    "classes are strongly imbalanced",
    why=(
        "Predicting the most frequent class alone gives a high accuracy. The best step is chosen "
        "by macro_f1, which counts every class equally."
    ),
    fix="Nothing to do; early_stopping.metric names another metric. With loss.class_weights: "
    "balanced, all classes count the same in the loss.",
)

MAJORITY_SHARE = 0.8
"""From this share of one class on, accuracy says little about the others."""
RATIO = 20
"""From this ratio of the largest class to the smallest one on, the smallest hardly counts."""


def choose_best_metric(
    task: TaskSpec, encoder: Encoder, asked: str | None
) -> tuple[TaskSpec, list[Finding]]:
    """The task, with macro_f1 as its best metric where accuracy would hide the rare classes."""
    counts = encoder.fitted.get("class_counts") or [1]
    total, largest, smallest = sum(counts), max(counts), min(counts)
    share = largest / max(total, 1)
    strong = share >= MAJORITY_SHARE or largest >= RATIO * max(smallest, 1)
    several = encoder.fitted.get("multi_label")
    if several or not strong or task.best != "accuracy" or "macro_f1" not in task.metrics:
        return task, []
    names = encoder.classes
    message = (
        f"Class {names[counts.index(largest)]!r} has {largest:,} of {total:,} training rows "
        f"({share:.0%}), class {names[counts.index(smallest)]!r} {smallest:,}."
    )
    if asked is not None:
        return task, [IMBALANCED_CLASSES.finding(f"{message} The best step goes by {asked}.")]
    found = IMBALANCED_CLASSES.finding(f"{message} The best step goes by macro_f1.")
    return replace(task, best="macro_f1"), [found]
