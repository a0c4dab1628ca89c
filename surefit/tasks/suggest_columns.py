"""Options to paste where the columns do not say by their names what is to be learned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from surefit.config import joint_name, joint_parts, set_option
from surefit.data.column_types import array_rank, is_array, is_integer_list
from surefit.data.column_values import is_identifier, is_metadata, is_prose
from surefit.data.extra_columns import holds, is_class_map
from surefit.data.file_columns import kind_named
from surefit.data.label_columns import (
    describes,
    holds_amounts,
    holds_classes,
    is_binary,
    is_continuous,
    is_named_as_label,
    tags_words,
)
from surefit.data.table import Table
from surefit.errors import FindingError
from surefit.findings import rule
from surefit.tasks.task_spec import TaskSpec

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

MOST_LINES = 3


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
    binary = [name for name in targets if is_binary(table, name)]
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
    prose = [name for name in columns if not is_metadata(name) and is_prose(table, name)]
    labels = _label_columns(table, [name for name in columns if name not in prose])
    for name, role in files.items():
        for label in labels:
            yield _task_for(table, label, role), {role: name, "label": label}
    if prose and labels:
        pair = {"text_pair": prose[1]} if len(prose) == 2 else {}
        text = {"text": max(prose, key=lambda name: _length(table, name))}
        text = {"text": prose[0], **pair} if pair else text
        binary = [name for name in table.columns if name in labels and is_binary(table, name)]
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
            kind = "regression" if is_continuous(table, name) else "tabular-classification"
            yield kind, {"label": name}


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
            amounts = holds_amounts(table, target, whole=False)
            task = "regression" if amounts else "image-classification"
            yield task, {"image": column, "label": target}
        elif inner <= 1 and inner <= rank:
            yield _task_for(table, target, "features"), {"features": column, "label": target}


def _label_columns(table: Table, columns: Sequence[str]) -> list[str]:
    """Columns of classes or amounts: those named as labels first, then the last, then binary."""
    named = [name for name in columns if is_named_as_label(table, name)]
    rest = [name for name in reversed(columns) if name not in named and not describes(name)]
    classes = [name for name in rest if holds_classes(table, name)]
    amounts = [name for name in rest if is_continuous(table, name)]
    last = [name for name in rest[:1] if name in (*classes, *amounts)]
    binary = [name for name in classes if is_binary(table, name)]
    return [*dict.fromkeys([*named, *last, *binary, *classes, *amounts])]


def _task_for(table: Table, label: str, role: str = "text") -> str:
    kind = f"{role.removesuffix('s')}-classification"
    return "regression" if is_continuous(table, label) else kind


def _length(table: Table, column: str) -> int:
    values = table.arrow[column].slice(0, 200).drop_null().to_pylist()
    return sum(map(len, values))
