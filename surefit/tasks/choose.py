"""Which task, and which column plays which role in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from surefit.data.roles import resolve_roles
from surefit.data.table import Table, describe_type
from surefit.findings import fail
from surefit.tasks import TASKS
from surefit.tasks.spec import TaskSpec


def choose_task(
    table: Table, task: TaskSpec | None, chosen: Mapping[Any, str]
) -> tuple[TaskSpec, dict[str, str]]:
    """The task asked for, or the first whose roles the columns fill; with the roles."""
    for role, column in chosen.items():
        if column not in table.columns:
            raise fail(
                "SF202",
                f"columns.{role} names {column!r}; the data has {', '.join(table.columns)}.",
                column=column,
            )
    if task is not None:
        if not task.needs:
            return task, {**{name: name for name in table.columns}, **chosen}
        roles = resolve_roles(table, task.needs, task.optional, chosen)
        if roles is not None:
            return task, roles
        needs = " or ".join(" and ".join(option) for option in task.needs)
        raise fail(
            "SF202",
            f"{task.name} needs the roles {needs}; the columns are {_columns(table)}.",
            fix="Say which column is which: --set columns.<role>=<column>.",
            file=table.sources[0].file,
        )
    for candidate in TASKS.values():
        roles = resolve_roles(table, candidate.needs, candidate.optional, chosen)
        if roles is not None:
            return candidate, roles
    raise fail(
        "SF202",
        f"No task could be worked out from the columns {_columns(table)}.",
        fix=f"Give --task ({', '.join(TASKS)}), and --set columns.<role>=<column> if needed.",
        file=table.sources[0].file,
    )


def _columns(table: Table) -> str:
    return ", ".join(f"{name} ({describe_type(table.column_type(name))})" for name in table.columns)
