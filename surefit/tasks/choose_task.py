"""Which task, and which column plays which role in it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from surefit.data.column_types import describe_type
from surefit.data.column_values import holds_answers
from surefit.data.data_rules import MISSING_COLUMN
from surefit.data.label_columns import likely_targets, may_be_label
from surefit.data.preference_pairs import read_whole_answers, refuse_preference
from surefit.data.roles import get_role, resolve_roles
from surefit.data.table import Table
from surefit.encode.encoder import Encoder
from surefit.errors import FindingError, UsageError
from surefit.tasks import TASKS, get_task
from surefit.tasks.causal_lm import PROMPTS_WITHOUT_ANSWERS
from surefit.tasks.suggest_columns import ask_for_target, suggest
from surefit.tasks.task_spec import TaskSpec
from surefit.user_code import CodeGate

INFERRED = tuple(task for task in TASKS.values() if task.needs)
"""Tasks that the columns may suggest."""


def choose_task(
    table: Table,
    wanted: TaskSpec | tuple[TaskSpec, ...] | None,
    chosen: Mapping[str, str],
    auto_classes: frozenset[str] | None = None,
) -> tuple[TaskSpec, dict[str, str]]:
    """The first of the wanted tasks (of all, if none is) whose roles the columns fill.

    Where several would do, or several forms of one, that which the model has a head for goes first.
    """
    candidates = (wanted,) if isinstance(wanted, TaskSpec) else wanted or INFERRED
    if any("answer" in task.role_names for task in candidates):
        refuse_preference(table, chosen)
        chosen = read_whole_answers(table, chosen)
    able = [task for task in candidates if _may_name(task) or set(chosen) <= set(task.role_names)]
    if not able:
        raise _unknown_role(chosen, candidates)
    for role, column in chosen.items():
        table.require_column(f"columns.{role}", column)
    fitting = []
    for task in able:
        if not task.needs:
            return task, {**{n: n for n in table.columns if _may_name(task)}, **chosen}
        form = task if auto_classes != frozenset() else _for_tables(task, chosen)
        asked = isinstance(wanted, TaskSpec)  # then a column of the wrong kind has its own message
        for needed in form.needs:
            one = replace(form, needs=(needed,))
            roles = roles_for(one, table, chosen, inferred=wanted is None, tables=not auto_classes)
            if roles is not None and (asked or task.takes is None or task.takes(table, roles)):
                fitting.append((task, roles))
    known = [task for task in able if _has_head(task, auto_classes)]
    if not fitting:
        raise _nothing_fits(table, able, known)
    fitting = [pair for pair in fitting if not pair[0].last_resort] or fitting
    suited = [(task, roles) for task, roles in fitting if _has_head(task, auto_classes, roles)]
    task, roles = [*suited, *fitting][0]
    if wanted is None:
        _refuse_guess(table, task, roles, known)
    return task, roles


def _may_name(task: TaskSpec) -> bool:
    """Whether every column has a role of its own name: rows as they are, of a user's TaskSpec."""
    return not task.needs and not task.whole_rows


def _for_tables(task: TaskSpec, chosen: Mapping[str, str]) -> TaskSpec:
    """The task for a model without a head for texts or files: one column of a table to it."""
    others = {"text", "input_ids", "image", "audio"} - {*chosen}
    needs = tuple(names for names in task.needs if others.isdisjoint(names))
    return replace(task, needs=needs) if needs else task


def _refuse_guess(
    table: Table, task: TaskSpec, roles: Mapping[str, str], known: Sequence[TaskSpec]
) -> None:
    """Ask where an inferred task would leave unread what may be meant."""
    of_text = task.last_resort and "text" in roles
    of_features = "features" in roles and "label" not in roles
    targets = likely_targets(table, {*roles.values()}) if of_text or of_features else []
    if of_features:
        free = [name for name in table.columns if name not in roles.values()]
        classes = [name for name in free if may_be_label(table, name)]
        targets = [*dict.fromkeys([*targets, *classes])]
    if targets:
        raise ask_for_target(table, task, roles, targets)
    unsuited = task not in known and ("source" in roles or task.last_resort)
    lines = suggest(table, known) if unsuited else []
    if lines:
        raise MISSING_COLUMN.error(
            f"The columns {_columns(table)} suit {task.name}, and the model does not.",
            fix=f"{_either(lines)} Or choose a model for {task.name}.",
            file=table.sources[0].file,
        )


def takes_class_files(wanted: TaskSpec | tuple[TaskSpec, ...] | None) -> bool:
    """Whether several text files are classes: one of the wanted tasks reads them so."""
    tasks = (wanted,) if isinstance(wanted, TaskSpec) else wanted or ()
    return any(task.class_files for task in tasks)


def roles_for(
    task: TaskSpec,
    table: Table,
    chosen: Mapping[str, str],
    by_type: bool = True,
    inferred: bool = False,
    tables: bool = True,
) -> dict[str, str] | None:
    """Role to column for the first of the task's forms that the columns have; None for none."""
    needs = [[task.role(name) for name in names] for names in task.needs]
    if not by_type:
        needs = [[replace(role, by_type=False) for role in roles] for roles in needs]
    optional = [task.role(name) for name in task.optional]
    return resolve_roles(table, needs, optional, chosen, inferred, tables)


def _has_head(
    task: TaskSpec, auto_classes: frozenset[str] | None, roles: Mapping[str, str] | None = None
) -> bool:
    head = task.head if roles is None else task.head_for(Encoder(task.name, roles))
    wanted = head.auto_class if head is not None else None
    return auto_classes is None or wanted is None or wanted in auto_classes


def _unknown_role(chosen: Mapping[str, str], candidates: tuple[TaskSpec, ...]) -> UsageError:
    """A role that is named in the config, and that no task to choose from has."""
    known = list(dict.fromkeys(name for task in candidates for name in task.role_names))
    unknown = next((role for role in chosen if role not in known), None)
    whose = candidates[0].name if len(candidates) == 1 else "no task"
    if unknown is None:  # each is known to some task, but none has all of them
        named = ", ".join(f"columns.{role}" for role in chosen)
        return UsageError(f"No task has all of the roles {named}.", "Give --task.")
    close = _nearest_role(unknown, candidates)
    hint = f" Did you mean columns.{close}?" if close else ""
    has = "has no" if len(candidates) == 1 else "has a"
    return UsageError(
        f"columns.{unknown}: {whose} {has} role {unknown!r}.{hint}",
        f"Choose among its roles: {', '.join(known)}."
        if len(candidates) == 1
        else f"Choose among the roles: {', '.join(known)}.",
    )


def _nearest_role(name: str, candidates: Sequence[TaskSpec]) -> str | None:
    """The role that a wrong name may stand for: one that recognises such columns, else by spelling.

    >>> _nearest_role("target", [TASKS["regression"]]), _nearest_role("txt", [TASKS["regression"]])
    ('label', 'text')
    """
    roles = [task.role(role) for task in candidates for role in task.role_names]
    recognised = next((role.name for role in roles if name.lower() in role.names), None)
    spelt = difflib.get_close_matches(name, [role.name for role in roles], n=1, cutoff=0.5)
    return recognised or next(iter(spelt), None)


def _nothing_fits(
    table: Table, tasks: Sequence[TaskSpec], known: Sequence[TaskSpec]
) -> FindingError:
    """What is missing, and options that would work; `known` are tasks that the model can learn."""
    file, lines = table.sources[0].file, suggest(table, known, tasks)
    if len(tasks) == 1:
        return MISSING_COLUMN.error(
            f"{tasks[0].name} needs {_needed(tasks[0])}; the columns are {_columns(table)}.",
            fix=f"Name the column of each role: {_either(lines or [ANY_ROLE])}",
            file=file,
        )
    prompt = next(
        (name for name in table.columns if name.lower() in get_role("prompt").names), None
    )
    if prompt is not None and holds_answers(table.column_type(prompt)):
        return PROMPTS_WITHOUT_ANSWERS.error(
            f"Column {prompt!r} has prompts, and no column is known to have the answers: "
            f"{_columns(table)}.",
            fix=f"Add the answers, or name their column: {_either(lines or [ANY_ROLE])}",
            file=file,
            column=prompt,
        )
    fix = f"Name the task and its columns: {_either(lines)}" if lines else ""
    return MISSING_COLUMN.error(
        f"No task could be inferred from the columns {_columns(table)}.",
        fix=fix or f"Give --task ({', '.join(TASKS)}), and {ANY_ROLE} if needed.",
        file=file,
    )


ANY_ROLE = "--set columns.<role>=<column>"


def _either(lines: Sequence[str]) -> str:
    """Options of which one is to be chosen, as a sentence."""
    return f"{'; or '.join(lines)}."


def _needed(task: TaskSpec) -> str:
    """The roles a task needs, in words.

    >>> _needed(TASKS["sft"])
    "one of: a column 'input_ids'; a column 'messages'; columns 'prompt' and 'answer'"
    """
    forms = [
        ("columns " if len(names) > 1 else "a column ") + " and ".join(map(repr, names))
        for names in task.needs
        if not any({*other} < {*names} for other in task.needs)
    ]
    return forms[0] if len(forms) == 1 else f"one of: {'; '.join(forms)}"


def _columns(table: Table) -> str:
    return ", ".join(f"{name} ({describe_type(table.column_type(name))})" for name in table.columns)


def find_task(name: str, code: CodeGate) -> TaskSpec | tuple[TaskSpec, ...]:
    """The task called `name`; `module:object` is found through the gate."""
    if ":" not in name:
        return get_task(name)
    found = code.find(name)
    if not isinstance(found, TaskSpec):
        raise UsageError(
            f"{name} is a {type(found).__name__}; expected a surefit.TaskSpec.",
            "Let the name stand for a TaskSpec object.",
        )
    return found
