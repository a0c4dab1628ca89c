"""Which task, and which column plays which role in it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from surefit.config import joint_name, joint_parts, set_option
from surefit.data.cell_files import holds, is_class_map, kind_named
from surefit.data.column_types import array_rank, describe_type, is_array, is_integer_list
from surefit.data.column_values import (
    describes,
    holds_answers,
    is_identifier,
    is_metadata,
    is_named_as_label,
    likely_targets,
    may_be_label,
    tags_words,
)
from surefit.data.data_rules import MISSING_COLUMN
from surefit.data.forms import read_whole_answers, refuse_preference
from surefit.data.roles import get_role, resolve_roles
from surefit.data.table import Table
from surefit.errors import FindingError, UsageError
from surefit.findings import rule
from surefit.inputs.encoder import Encoder
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

INFERRED = tuple(task for task in TASKS.values() if task.needs)
"""Tasks that the columns may suggest."""
MOST_LINES = 3


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


def _may_name(task: TaskSpec) -> bool:
    """Whether every column has a role of its own name: rows as they are, of a user's TaskSpec."""
    return not task.needs and not task.reads.whole_rows


def _for_tables(task: TaskSpec, chosen: Mapping[str, str]) -> TaskSpec:
    """The task for a model without a head for texts or files: one column of a table to it."""
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
    """Whether several text files are classes: one of the wanted tasks reads them so."""
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


def options(task: str, roles: Mapping[str, str]) -> str:
    """The options that choose a task and name its columns.

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
    """The question whether some columns are the target, with an option for each answer."""
    role = "text" if "text" in roles else "features"
    text, kind = roles[role], f"{role.removesuffix('s')}-classification"
    lines = [_line_for(table, role, text, name) for name in targets[:MOST_LINES]]
    binary = [name for name in targets if table.profile(name).is_binary]
    if len(binary) > 1:
        roles = {role: text, "label": joint_name(binary)}
        lines.insert(0, f"To predict all of them: {options(kind, roles)}.")
    what = "is the target" if len(targets) == 1 else "is the target, and which one"
    return TARGET_OR_NOT.error(
        f"It is not clear whether a column beside {text!r} {what}: "
        f"{', '.join(map(repr, targets))}.",
        fix=" ".join([*lines, f"To train on the {role} alone: {options(task.name, {})}."]),
        file=table.sources[0].file,
        column=targets[0],
    )


def _line_for(table: Table, role: str, text: str, target: str) -> str:
    """What to write or to change, to predict the target."""
    if role == "text" and tags_words(table, text, target):
        return (
            f"To predict {target!r}, which has a tag for each word: write the words of {text!r} "
            "as lists into a column 'tokens'."
        )
    roles = {role: text, "label": target}
    return f"To predict {target!r}: {options(_task_for(table, target, role), roles)}."


def suggest(
    table: Table, known: Iterable[TaskSpec], for_tables: Iterable[TaskSpec] = ()
) -> list[str]:
    """Options that would work, the likeliest first; none where the columns suit no task.

    `known` are tasks that the model can learn; any model of one's own may read tables.
    """
    names, others = {task.name for task in known}, {task.name for task in for_tables}
    able = [
        (task, roles)
        for task, roles in _readings(table)
        if task in names or (task in others and {*roles} == {"label"})
    ]
    return [options(task, roles) for task, roles in able][:MOST_LINES]


def _readings(table: Table) -> Iterator[tuple[str, dict[str, str]]]:
    """Tasks and roles that the types and values of the columns allow."""
    kinds = {name: kind_named(table, name, lambda kind: kind.decoded) for name in table.columns}
    files = {name: kind.role for name, kind in kinds.items() if kind is not None}
    columns = [name for name in table.columns if not is_identifier(name) and name not in files]
    prose = [name for name in columns if not is_metadata(name) and table.profile(name).is_prose]
    labels = _label_columns(table, [name for name in columns if name not in prose])
    for name, role in files.items():
        for label in labels:
            yield _task_for(table, label, role), {role: name, "label": label}
    if prose and labels:
        pair = {"text_pair": prose[1]} if len(prose) == 2 else {}
        text = {"text": max(prose, key=lambda name: sum(map(len, table.profile(name).first)))}
        text = {"text": prose[0], **pair} if pair else text
        binary = [
            name for name in table.columns if name in labels and table.profile(name).is_binary
        ]
        if len(binary) > 1:
            yield "text-classification", {**text, "label": joint_name(binary)}
        for name in labels:
            yield _task_for(table, name), {**text, "label": name}
    if len(prose) > 1:
        first, second = prose[:2]
        yield "seq2seq", {"source": first, "target": second}
        yield "sft", {"prompt": first, "answer": second}
        yield "seq2seq", {"source": second, "target": first}
    if prose:
        yield "causal-lm", {"text": prose[0]}
        yield "masked-lm", {"text": prose[0]}
    arrays = [name for name in columns if is_array(table.column_type(name))]
    images = [n for n in arrays if holds(table, n, "image") and not is_class_map(table, n)]
    for name in [name for name in labels if name not in images][: len(images) > 1]:
        yield "image-classification", {"image": joint_name(images), "label": name}
    for name in arrays:
        yield from _array_readings(table, name, [n for n in (*labels, *arrays) if n != name])
    if not prose and not arrays and not files and len(table.columns) > 1:
        for name in labels:
            yield _task_for(table, name, "tabular"), {"label": name}


def _array_readings(
    table: Table, column: str, targets: Sequence[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """What may be learned of a column of arrays: a class or a number for each, or within it."""
    rank = array_rank(table.column_type(column))
    if rank == 1 and is_integer_list(table.column_type(column)):
        return  # marks of something, such as the turns of a dialogue, and no input
    for target in dict.fromkeys(targets):
        inner = array_rank(table.column_type(target))
        if inner > 1 and not is_class_map(table, target):
            continue  # another input, such as the second image of a pair
        if inner > 1 and rank in (inner, inner + 1):
            yield "image-segmentation", {"image": column, "label": target}
        elif inner <= 1 and rank > 2:
            amounts = table.profile(target).holds_amounts(whole=False)
            task = "regression" if amounts else "image-classification"
            yield task, {"image": column, "label": target}
        elif inner <= 1 and inner <= rank:
            yield _task_for(table, target, "features"), {"features": column, "label": target}


def _label_columns(table: Table, columns: Sequence[str]) -> list[str]:
    """Columns of classes or amounts: those named as labels first, then the last, then binary."""
    named = [name for name in columns if is_named_as_label(table, name)]
    rest = [name for name in reversed(columns) if name not in named and not describes(name)]
    classes = [name for name in rest if table.profile(name).holds_classes]
    amounts = [name for name in rest if table.profile(name).is_continuous]
    last = [name for name in rest[:1] if name in (*classes, *amounts)]
    binary = [name for name in classes if table.profile(name).is_binary]
    return [*dict.fromkeys([*named, *last, *binary, *classes, *amounts])]


def _task_for(table: Table, label: str, role: str = "text") -> str:
    """The task that learns a label of this kind of input."""
    kind = f"{role.removesuffix('s')}-classification"
    return "regression" if table.profile(label).is_continuous else kind
