"""Columns that are misread or not read although they mean something."""

from __future__ import annotations

from collections.abc import Mapping

from surefit.data.column_meanings import JUDGED_ANSWERS, RIVAL, check_meanings
from surefit.data.message_rows import check_message_rows
from surefit.data.table import Table
from surefit.findings import Finding
from surefit.plan.plan import Plan


def check_unread(
    table: Table, plan: Plan, chosen: Mapping[str, str]
) -> tuple[str | None, list[Finding]]:
    """What the columns mean that the task does not read; `chosen` are those that the user names.

    Where the user accepts it, also the column that says which answers are good.
    """
    task, roles, columns = plan.task, plan.roles, plan.columns
    assert task is not None
    assert columns is not None
    found = list(task.misread(table, roles, chosen)) if task.misread is not None else []
    meanings = [each for each in task.meanings if each is not RIVAL or not chosen]
    found += check_meanings(table, meanings, roles, columns)
    found += check_message_rows(table, roles, chosen)
    judged = (f.where["column"] for f in found if f.code == JUDGED_ANSWERS.code)
    accepted = JUDGED_ANSWERS.code in plan.config.accept
    kept_where = next((str(column) for column in judged if accepted), None)
    return kept_where, found
