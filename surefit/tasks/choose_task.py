"""Which task, and which column plays which role in it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from operator import itemgetter
from typing import Any

from surefit.config import joint_name, joint_parts, set_option
from surefit.data.cell_files import FILE_ROLES, holds, is_class_map
from surefit.data.column_types import describe_type, is_array, is_dialogue, is_integer_list
from surefit.data.column_values import (
    holds_answers,
    is_identifier,
    is_metadata,
    label_columns,
    likely_targets,
    may_be_label,
    tags_words,
)
from surefit.data.data_rules import MISSING_COLUMN
from surefit.data.forms import read_whole_answers, refuse_forms
from surefit.data.roles import get_role, resolve_roles
from surefit.data.stored_messages import holds_messages
from surefit.data.table import Table
from surefit.errors import FindingError, UsageError
from surefit.findings import rule
from surefit.inputs.encoder import Encoder
from surefit.inputs.file_names import GIVE_CLASSES
from surefit.targets.task_spec import TaskSpec
from surefit.tasks import TASKS, get_task
from surefit.tasks.language_models import PROMPTS_WITHOUT_ANSWERS
from surefit.user_code import CodeGate

TARGET_OR_NOT = rule(
    "SF143",
    "error",
    "columns that may be the target",
    why=(
        "The data has a text, or features, and a column that may be what is to be learned of it. "
        "Training on the inputs alone and predicting the column are different tasks."
    ),
    fix="Name the task with --task, and the column with --set columns.label=<column>.",
)

INFERRED = tuple(task for task in TASKS.values() if task.needs and not task.reads.by_name)
"""Tasks that the columns may suggest."""
MOST_LINES = 3


def choose_task(
    table: Table,
    wanted: TaskSpec | tuple[TaskSpec, ...] | None,
    chosen: Mapping[str, str],
    auto_classes: frozenset[str] | None = None,
) -> tuple[TaskSpec, dict[str, str]]:
    """Return the first of the wanted tasks (of all, if none is) whose roles the columns fill.

    Where several would do, or several forms of one, that which the model has a head for goes first.
    """
    candidates = (wanted,) if isinstance(wanted, TaskSpec) else wanted or INFERRED
    if any("answer" in task.role_names for task in candidates):
        refuse_forms(table, wanted.role_names if isinstance(wanted, TaskSpec) else (), chosen)
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
            own = _of_form(task, needed, chosen)
            roles = roles_for(one, table, own, inferred=wanted is None, tables=not auto_classes)
            if roles is not None and (
                asked or task.reads.takes is None or task.reads.takes(table, roles)
            ):
                fitting.append((task, roles))
    known = [task for task in able if _has_head(task, auto_classes)]
    if not fitting:
        raise _nothing_fits(table, able, known)
    fitting = [pair for pair in fitting if not pair[0].reads.last_resort] or fitting
    suited = [(task, roles) for task, roles in fitting if _has_head(task, auto_classes, roles)]
    task, roles = [*suited, *fitting][0]
    if wanted is None:
        _refuse_guess(table, task, roles, known)
    return task, roles


def _of_form(task: TaskSpec, needed: Sequence[str], chosen: Mapping[str, str]) -> Mapping[str, str]:
    """Return the chosen columns without those of the other forms that the task mixes, where all of
    several forms are named: a run that is resumed names them all."""
    named = [names for names in task.needs if {*names} <= {*chosen} & {*task.reads.mixes}]
    others = {role for names in named for role in names} - {*needed} if len(named) > 1 else ()
    return {role: column for role, column in chosen.items() if role not in others}


def _may_name(task: TaskSpec) -> bool:
    """Whether every column has a role of its own name: rows as they are, of a user's TaskSpec."""
    return not task.needs and not task.reads.whole_rows


def _for_tables(task: TaskSpec, chosen: Mapping[str, str]) -> TaskSpec:
    """Return task for a model without a head for texts or files: one column of a table to it."""
    others = {"text", "input_ids", "image", "audio"} - {*chosen}
    needs = tuple(names for names in task.needs if others.isdisjoint(names))
    return replace(task, needs=needs) if needs else task


def _refuse_guess(
    table: Table, task: TaskSpec, roles: Mapping[str, str], known: Sequence[TaskSpec]
) -> None:
    """Ask where an inferred task would leave unread what may be meant."""
    of_text = task.reads.last_resort and "text" in roles
    of_features = "features" in roles and "label" not in roles
    targets = likely_targets(table, {*roles.values()}) if of_text or of_features else []
    if of_features:
        free = [name for name in table.columns if name not in roles.values()]
        classes = [name for name in free if may_be_label(table, name)]
        targets = [*dict.fromkeys([*targets, *classes])]
    if targets:
        raise ask_for_target(table, task, roles, targets)
    unsuited = task not in known and ("source" in roles or task.reads.last_resort)
    lines = suggest(table, known) if unsuited else []
    if lines:
        raise MISSING_COLUMN.error(
            f"The columns {_columns(table)} suit {task.name}, and the model does not.",
            fix=f"{_either(lines)} Or choose a model for {task.name}.",
            file=table.sources[0].file,
        )


def takes_class_files(wanted: TaskSpec | tuple[TaskSpec, ...] | None) -> bool:
    """Return whether several text files are classes: one of the wanted tasks reads them so."""
    tasks = (wanted,) if isinstance(wanted, TaskSpec) else wanted or ()
    return any(task.reads.class_files for task in tasks)


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
    head = task.head_for(Encoder(task.name, roles or {}))
    wanted = head.auto_class if head is not None else None
    return auto_classes is None or wanted is None or wanted in auto_classes


Reading = tuple[TaskSpec, dict[str, str]]
"""A task, and the columns that have its roles."""


def _unknown_role(chosen: Mapping[str, str], candidates: tuple[TaskSpec, ...]) -> UsageError:
    """Return a role that is named in the config, and that no task to choose from has."""
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
    """Return the role that a wrong name may stand for: one that recognises such columns, else by
    spelling.

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
    files = {name for role in FILE_ROLES for name in get_role(role).names}
    named = next((name for name in table.columns if name.lower() in files), None)
    if named is not None and "label" not in map(str.lower, table.columns):
        return MISSING_COLUMN.error(
            f"Column {named!r} has files, and no column is known to have what is learned of them: "
            f"{_columns(table)}.",
            fix=GIVE_CLASSES,
            file=file,
            column=named,
        )
    fix = f"Name the task and its columns: {_either(lines)}" if lines else ""
    return MISSING_COLUMN.error(
        f"No task could be inferred from the columns {_columns(table)}.",
        fix=fix or f"Give --task ({', '.join(TASKS)}), and {ANY_ROLE} if needed.",
        file=file,
    )


ANY_ROLE = "--set columns.<role>=<column>"


def _either(lines: Sequence[str]) -> str:
    """Return options of which one is to be chosen, as a sentence."""
    return f"{'; or '.join(lines)}."


def _needed(task: TaskSpec) -> str:
    """Return the roles a task needs, in words.

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
    """Return the task called `name`; `module:object` is found through the gate."""
    if ":" not in name:
        return get_task(name)
    found = code.find(name)
    if not isinstance(found, TaskSpec):
        raise UsageError(
            f"{name} is a {type(found).__name__}; expected a surefit.TaskSpec.",
            "Let the name stand for a TaskSpec object.",
        )
    return found


def options(task: str, roles: Mapping[str, str]) -> str:
    """Return the options that choose a task and name its columns.

    >>> options("sft", {"prompt": "title", "answer": "my text"})
    "--task sft --set columns.prompt=title --set 'columns.answer=my text'"
    """
    named = (
        set_option(f"columns.{role}", joint_parts(column) or column)
        for role, column in roles.items()
    )
    return " ".join([f"--task {task}", *named])


def ask_for_target(
    table: Table, task: TaskSpec, roles: Mapping[str, str], targets: Sequence[str]
) -> FindingError:
    """Return the question whether some columns are the target, with an option for each answer."""
    role = "text" if "text" in roles else "features"
    tagged = [n for n in targets if role == "text" and tags_words(table, roles[role], n)]
    labels = [name for name in targets if name not in tagged]
    likely = {role: [roles[role]], "label": [*_joint_label(table, labels), *labels]}
    readings = _readings(table, INFERRED, likely)
    options_by = {made["label"]: options(t.name, made) for t, made in readings if "label" in made}
    lines = [
        f"To predict {'all of them' if joint_parts(label) else repr(label)}: {line}."
        for label, line in options_by.items()
    ]
    lines += [
        f"To predict {name!r}, which has a tag for each word: write the words of {roles[role]!r} "
        "as lists into a column 'tokens'."
        for name in tagged
    ]
    what = "is the target" if len(targets) == 1 else "is the target, and which one"
    return TARGET_OR_NOT.error(
        f"It is not clear whether a column beside {roles[role]!r} {what}: "
        f"{', '.join(map(repr, targets))}.",
        fix=" ".join(
            [*lines[: MOST_LINES + 1], f"To train on the {role} alone: {options(task.name, {})}."]
        ),
        file=table.sources[0].file,
        column=targets[0],
    )


def suggest(
    table: Table, known: Sequence[TaskSpec], for_tables: Iterable[TaskSpec] = ()
) -> list[str]:
    """Return options that would work, the likeliest first; none where the columns suit no task.

    `known` are tasks that the model can learn; any model of one's own may read tables.
    """
    likely = likely_columns(table)
    others = [replace(task, needs=(("label",),)) for task in for_tables if ("label",) in task.needs]
    tasks = [*known, *(task for task in others if task.name not in {each.name for each in known})]
    readings = _readings(table, tasks, likely)[:MOST_LINES]
    return [options(task.name, roles) for task, roles in readings]


def _readings(
    table: Table, tasks: Sequence[TaskSpec], likely: Mapping[str, Sequence[str]]
) -> list[Reading]:
    """Return tasks with columns that are `likely` to have their roles, the likeliest first.

    Those that learn a label come first, then those that write a text; one that is the last resort
    goes last.
    """
    found: dict[tuple[str, tuple[str, ...]], tuple[Any, Reading]] = {}
    for place, task in enumerate(tasks):
        for needed in task.needs:
            if needed == ("label",) and any(likely[role] for role in likely if role != "label"):
                continue  # rows of a table have neither texts nor files nor arrays
            order = sorted(needed, key=lambda role: role != "label")
            pools = [[*enumerate(likely.get(role, ()))] for role in order]
            for taken in product(*pools):
                columns = [column for _, column in taken]
                roles = dict(zip(order, columns, strict=True))
                if len({*columns}) < len(columns) or not _suits(table, task, roles):
                    continue
                tier = 2 if task.reads.last_resort else int("label" not in needed)
                rank = (tier, [at for at, _ in taken], place)
                roles = _with_pair(task, {role: roles[role] for role in needed}, likely)
                found.setdefault((task.name, tuple(columns)), (rank, (task, roles)))
    return [reading for _, reading in sorted(found.values(), key=itemgetter(0))]


def _suits(table: Table, task: TaskSpec, roles: Mapping[str, str]) -> bool:
    """Return whether the task takes these columns; of several under one role, the first."""
    first = {role: (joint_parts(column) or [column])[0] for role, column in roles.items()}
    kinds = {role: table.column_type(column) for role, column in first.items()}
    if not all(task.role(role).accepts(kind, True) for role, kind in kinds.items()):
        return False
    return task.reads.takes is None or task.reads.takes(table, first)


def _with_pair(
    task: TaskSpec, roles: dict[str, str], likely: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Return the roles of a text and its label with the only other text, which makes it a pair."""
    texts = likely.get("source", ())
    if len(texts) != 2 or not {"text", "label"} <= {*roles} or "text_pair" not in task.optional:
        return roles
    return {"text": texts[0], "text_pair": texts[1], "label": roles["label"]}


def likely_columns(table: Table) -> dict[str, list[str]]:
    """Return the columns that may have a role by their values, whatever they are called."""
    held = {role: [n for n in table.columns if holds(table, n, role)] for role in FILE_ROLES}
    media = [name for names in held.values() for name in names]
    columns = [n for n in table.columns if not is_identifier(n) and n not in media]
    texts = [n for n in columns if table.profile(n).is_prose]
    prose = [n for n in texts if not is_metadata(n)]
    prose = texts if len(prose) == 1 else prose  # 'user' beside 'assistant' is not metadata
    arrays = [n for n in columns if is_array(table.column_type(n))]
    # lists of integers are marks of something, such as the turns of a dialogue, and no input
    features = [n for n in arrays if not is_integer_list(table.column_type(n))]
    labels = label_columns(table, [n for n in columns if n not in prose])
    maps = [n for n in media if is_array(table.column_type(n))]
    images = [n for n in held["image"] if not is_class_map(table, n)]
    several = [joint_name(images)] if len(images) > 1 else []
    lists = [n for n in columns if is_dialogue(table.column_type(n))]
    return {
        **held,
        "image": [*several, *held["image"]],
        "features": features,
        "label": [*_joint_label(table, labels), *dict.fromkeys([*labels, *arrays, *maps])],
        "messages": [n for n in lists if all(map(holds_messages, table.profile(n).first))],
        "text": sorted(prose, key=lambda n: -sum(map(len, table.profile(n).first)))[:1],
        **dict.fromkeys(("source", "prompt", "target", "answer"), prose[:MOST_LINES]),
    }


def _joint_label(table: Table, labels: Sequence[str]) -> list[str]:
    """Return the name of several columns of 0 and 1 as one label."""
    binary = [n for n in table.columns if n in labels and table.profile(n).is_binary]
    return [joint_name(binary)] if len(binary) > 1 else []
