"""`surefit tasks`: the tasks and the tiny architectures."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    models: Annotated[
        bool, typer.Option("--models", help="List the architectures of tiny:ARCH instead.")
    ] = False,
) -> int:
    """List the tasks, the columns they need and their metrics."""
    if models:
        from surefit.models.tiny import tiny_families

        for family, names in tiny_families().items():
            print(f"{family} ({len(names)}): {' '.join(names)}")
        return 0
    from surefit.tasks import TASKS

    for name, task in TASKS.items():
        needs = " or ".join(" + ".join(option) for option in task.needs) or "any, under their names"
        print(f"{name}\n  {task.summary}")
        print(f"  columns  {needs}\n  metrics  {', '.join(task.metric_names)}")
    return 0
