"""`surefit tasks`: what can be trained."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    models: Annotated[
        bool, typer.Option("--models", help="The architectures that tiny:ARCH can build.")
    ] = False,
) -> int:
    """The tasks, what each needs and gives."""
    if models:
        from surefit.models.tiny_architectures import FAMILIES

        for family, names in FAMILIES.items():
            print(f"{family} ({len(names)}): {' '.join(names)}")
        return 0
    from surefit.tasks import TASKS

    for name, task in TASKS.items():
        needs = " or ".join(" + ".join(option) for option in task.needs)
        print(
            f"{name}\n  {task.summary}\n  needs  {needs}\n  gives  {', '.join(task.metric_names)}"
        )
    return 0
