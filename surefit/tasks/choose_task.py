"""Which task, and which column plays which role in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from surefit.data.data_rules import MISSING_COLUMN
from surefit.data.roles import resolve_roles
from surefit.data.table import Table, describe_type
from surefit.tasks import TASKS
from surefit.tasks.task_spec import TaskSpec


def choose_task(
    table: Table,
    wanted: TaskSpec | tuple[TaskSpec, ...] | None,
    chosen: Mapping[Any, str],
    auto_classes: frozenset[str] | None = None,
) -> tuple[TaskSpec, dict[str, str]]:
    """The first of the wanted tasks (of all, if none is) whose roles the columns fill.

    Where several would do, a task that the model has a head for goes first.
    """
    for role, column in chosen.items():
        if column not in table.columns:
            raise MISSING_COLUMN.error(
                f"columns.{role} names {column!r}; the data has {', '.join(table.columns)}.",
                column=column,
            )
    candidates = (wanted,) if isinstance(wanted, TaskSpec) else wanted or tuple(TASKS.values())
    fitting = []
    for task in candidates:
        if not task.needs:
            return task, {**{name: name for name in table.columns}, **chosen}
        roles = resolve_roles(table, task.needs, task.optional, chosen)
        asked = isinstance(wanted, TaskSpec)  # then a column of the wrong kind has its own message
        if roles is not None and (asked or task.takes is None or task.takes(table, roles)):
            fitting.append((task, roles))
    if not fitting:
        raise _nothing_fits(table, candidates)
    fitting = [pair for pair in fitting if not pair[0].last_resort] or fitting
    suited = (pair for pair in fitting if _has_head(pair[0], auto_classes))
    return next(suited, fitting[0])


def _has_head(task: TaskSpec, auto_classes: frozenset[str] | None) -> bool:
    wanted = task.head.auto_class if task.head is not None else None
    return auto_classes is None or wanted is None or wanted in auto_classes


def _nothing_fits(table: Table, candidates: tuple[TaskSpec, ...]) -> Exception:
    file = table.sources[0].file
    if len(candidates) == 1:
        task = candidates[0]
        needs = " or ".join(" and ".join(option) for option in task.needs)
        return MISSING_COLUMN.error(
            f"{task.name} needs the roles {needs}; the columns are {_columns(table)}.",
            fix="Say which column is which: --set columns.<role>=<column>.",
            file=file,
        )
    return MISSING_COLUMN.error(
        f"No task could be worked out from the columns {_columns(table)}.",
        fix=f"Give --task ({', '.join(TASKS)}), and --set columns.<role>=<column> if needed.",
        file=file,
    )


def _columns(table: Table) -> str:
    return ", ".join(f"{name} ({describe_type(table.column_type(name))})" for name in table.columns)
