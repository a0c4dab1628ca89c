"""A run that is resumed with more (or fewer) steps than it was begun with."""

from __future__ import annotations

from collections.abc import Sequence

from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.plan.plan import Plan
from surefit.run.run_folder import Run
from surefit.training.changed_config import Difference
from surefit.training.schedule import lr_by_step

Spans = list[tuple[int, int]]
"""Pairs: after which step a total number of steps applies."""

CONFIG_CHANGED = rule(
    "SF800",
    "info",
    "settings changed on resume",
    why="When a run evaluates, saves and ends, and what it runs on, may change when it is resumed.",
    fix="Nothing to do.",
)
RUN_EXTENDED = rule(
    "SF801",
    "info",
    "another number of steps on resume",
    why="The learning rate depends on the number of steps. From the saved step on it is computed "
    "over the new number, so that it can jump at that step.",
    fix="Nothing to do. `--set schedule=constant` in a new run makes it independent of the length.",
)


def extend_spans(run: Run, spans: Spans, num_steps: int) -> Spans:
    """The spans with a new total from the saved step on; refuses one that is already exceeded."""
    if num_steps == spans[-1][1]:
        return spans
    saved = run.saved_step
    if num_steps < saved:
        raise UsageError(
            f"{run.path} has finished step {saved}; epochs and max_steps now allow {num_steps}.",
            "Give a larger number, or leave it out.",
        )
    return [*(span for span in spans if span[0] < saved or span[0] == 0), (saved, num_steps)]


def describe_changes(changes: Sequence[Difference]) -> list[Finding]:
    """What differs from the run's config so far."""
    return [CONFIG_CHANGED.finding(f"{change}.") for change in changes]


def describe_extension(plan: Plan, run: Run, spans: Spans) -> list[Finding]:
    """The learning rate before and after, where the number of steps changed."""
    before = run.spans(run.plan["steps"])
    if spans == before:
        return []
    assert plan.model is not None
    config, saved, peak = plan.config, spans[-1][0], plan.model.lr
    (old, new), total = (before[-1][1], spans[-1][1]), max(before[-1][1], spans[-1][1])
    last = max(total - 1, saved)
    shown = sorted({max(saved, 1), saved + 1, (saved + last) // 2 + 1, last, total})

    def curve(given: Spans) -> str:
        at = lr_by_step(given, config.warmup, config.schedule)
        ends = given[-1][1]
        rates = (f"{peak * at(step):.3g}" if step <= ends else "ended" for step in shown)
        return ", ".join(rates)

    return [
        RUN_EXTENDED.finding(
            f"The run has {new} steps instead of {old}. Learning rate ({config.schedule}) at the "
            f"steps {', '.join(map(str, shown))}: before {curve(before)}; now {curve(spans)}."
        )
    ]
