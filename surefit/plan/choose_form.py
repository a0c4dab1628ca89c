"""Which columns a custom module reads, where names and types alone do not say so.

A module does not declare its inputs: its forward has names, and it is tried on zeros. What it reads
as images, token ids or features is known by those inputs (`RowInput.read_by`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from surefit.batches.field import well_known_fields
from surefit.data.cell_files import holds, is_class_map
from surefit.data.column_types import array_rank, is_array, is_integer_list
from surefit.data.column_values import is_identifier
from surefit.data.python.torch_data import is_unnamed
from surefit.data.roles import ROLES, get_role
from surefit.data.row_arrays import row_shape
from surefit.data.several_columns import SEVERAL, extra_role
from surefit.data.table import Table
from surefit.findings import rule
from surefit.inputs.encoder import Encoder
from surefit.inputs.model_hints import Hints
from surefit.inputs.row_input import RowInput
from surefit.targets.masks import MASKS
from surefit.targets.task_spec import TaskSpec
from surefit.tasks import TASKS

TOKEN_COLUMNS = {*well_known_fields()} - {"inputs_embeds"}
"""Columns of token ids and beside them, as transformers calls them."""
READ_AS_TEXT = {"input_ids", "text", "tokens"}
"""Roles that leave no question what is tokenized."""


def choose_form(
    table: Table,
    hints: Hints,
    wanted: TaskSpec | Sequence[TaskSpec] | None,
    chosen: Mapping[str, str],
    split_by: str | None = None,
) -> dict[str, str]:
    """Return the columns by role that the user chose, with those that the module decides."""
    tasks = (wanted,) if isinstance(wanted, TaskSpec) else wanted or [*TASKS.values()]
    possible = {role for task in tasks for role in task.role_names}
    every = {each.role: each for task in TASKS.values() for each in task.reads.inputs}
    inputs = {role: each for role, each in every.items() if role is not None and role in possible}
    lead = {} if {*SEVERAL} & {*chosen} else _lead_input(table, hints, inputs, chosen)
    has_label = "label" in possible and _has_label(table, chosen)
    found = {**chosen, **(lead or _read_array(table, hints, inputs, chosen, has_label))}
    arrays = [name for name in table.columns if _is_input(table, name)]
    several = {*found} & {*SEVERAL} - {*chosen}
    if not (arrays or several) or "label" in found or "label" not in possible:
        return found
    label = _label_beside(table, {*found.values(), *hints.arguments, *arrays, split_by or ""})
    if label is None:
        return found or _inputs_and_targets(table, hints, arrays)
    if (
        len(arrays) == 1
        and not {*inputs} & {*found}
        and array_rank(table.column_type(arrays[0])) <= 2
    ):
        found["features"] = arrays[0]
    return {**found, "label": label}


def with_given_ids(
    table: Table, wanted: TaskSpec | Sequence[TaskSpec] | None, chosen: Mapping[str, str]
) -> dict[str, str]:
    """The chosen columns, with that of token ids where no tokenizer can read the texts beside."""
    tasks = (wanted,) if isinstance(wanted, TaskSpec) else wanted
    takes_ids = tasks is None or any("input_ids" in task.role_names for task in tasks)
    if not takes_ids or "input_ids" not in table.columns or READ_AS_TEXT & {*chosen}:
        return dict(chosen)
    is_ids = is_integer_list(table.column_type("input_ids"))
    return {**chosen, **({"input_ids": "input_ids"} if is_ids else {})}


def _inputs_and_targets(table: Table, hints: Hints, arrays: Sequence[str]) -> dict[str, str]:
    """Of two columns of vectors alone, that which the module reads, and the other as targets."""
    ranks = [array_rank(table.column_type(name)) for name in arrays]
    if ranks != [1, 1] or len(table.columns) != 2 or hints.reads_vectors is None:
        return {}
    sizes = {name: row_shape(table, name).axes[0].size for name in arrays}
    read = [name for name, size in sizes.items() if size and hints.reads_vectors(size)]
    if len(read) != 1:
        return {}
    return {"features": read[0], "label": next(name for name in arrays if name != read[0])}


def _label_beside(table: Table, read: Collection[str]) -> str | None:
    """Return the only column left that may be the label, where others are inputs, ids or groups."""
    label = get_role("label")
    may_be = [name for name in table.columns if label.accepts(table.column_type(name), False)]
    if len(may_be) < 2 or any(name.lower() in label.names for name in table.columns):
        return None  # the name or the type alone decides
    left = [name for name in may_be if name not in read and not is_identifier(name)]
    return left[0] if len(left) == 1 else None


def _read_array(
    table: Table,
    hints: Hints,
    inputs: Mapping[str, RowInput],
    chosen: Mapping[str, str],
    has_label: bool,
) -> dict[str, str]:
    """Return the column of arrays that the module reads, with its role: the first input knows it.

    Token ids are looked for beside a label only: without one, tasks read them by their name.
    """
    arrays = [n for n in table.columns if n not in chosen.values() and _is_input(table, n)]
    if not arrays or {*inputs} & {*chosen} or "inputs_embeds" in hints.arguments:
        return {}
    others = [name for name in arrays if name.lower() not in MASKS.names]
    if len(others) == 1 and array_rank(table.column_type(others[0])) == 3:
        arrays = others  # an image, and masks of its pixels
    for role, given in inputs.items():
        column = given.read_by(table, arrays, hints)
        if column is not None and (has_label or role != "input_ids"):
            return {role: column}
    return {}


def _has_label(table: Table, chosen: Mapping[str, str]) -> bool:
    """Return whether a column is the label by its name, and one value per row."""
    label = get_role("label")
    named = (name for name in table.columns if name.lower() in label.names)
    return "label" in chosen or any(label.accepts(table.column_type(n), False) for n in named)


def _is_input(table: Table, column: str) -> bool:
    """Whether a column has arrays, and its name is neither a label's nor one of token ids."""
    known = (*get_role("label").names, *TOKEN_COLUMNS)
    return is_array(table.column_type(column)) and column.lower() not in known


RAW_INPUT = rule(
    "SF127",
    "error",
    "further column that would not be read alike",
    why=(
        "The module reads several columns of images or audio. The first is decoded, resized and "
        "normalised; the other would be passed on as it is in the data."
    ),
    fix="Name an argument of forward after each column, or list them: columns.image=[left,right].",
)

NAMES_IN_BATCHES = {"labels", *(role.batch_column for role in ROLES.values())}
"""Names that a batch has for other columns."""


def _lead_input(
    table: Table, hints: Hints, possible: Collection[str], chosen: Mapping[str, str]
) -> dict[str, str]:
    """Of several columns of images or audio, the first that the module's forward names."""
    free = [name for name in table.columns if name not in chosen.values()]
    for role in SEVERAL:
        named = [name for name in hints.arguments if name in free and holds(table, name, role)]
        if role not in possible or not named:
            continue
        images = [name for name in named if not is_class_map(table, name)] or named
        others = (name for name in free if name != images[0] and not is_class_map(table, name))
        if len(images) > 1 or any(holds(table, name, role) for name in others):
            return {role: images[0]}
    return {}


def further_inputs(
    table: Table,
    roles: Mapping[str, str],
    arguments: Sequence[str],
    chosen: Mapping[str, str],
) -> dict[str, str]:
    """Return the further roles: `chosen` by the user, else columns that forward names like the
    first.

    Classes of pixels beside images are numbers to the module, as they are.
    """
    for column in chosen.values():
        table.require_column("columns", column)
    if chosen:
        return dict(chosen)
    role = next((role for role in SEVERAL if role in roles), None)
    if role is None:
        return {}
    is_map = is_class_map(table, roles[role])
    return {
        extra_role(role, name): name
        for name in table.columns
        if name not in {*roles.values(), *NAMES_IN_BATCHES}
        and (name in arguments or is_unnamed(name))
        and holds(table, name, role)
        and (is_map or not is_class_map(table, name))
    }


def read_further(encoder: Encoder, read: Collection[str]) -> Encoder:
    """The Encoder without further columns that forward does not read, of rows that are tuples."""
    unread = {name for name in encoder.further if name not in read}
    named = next((name for name in encoder.roles.values() if name in unread), None)
    if named is None:
        return encoder
    if not is_unnamed(named):
        raise RAW_INPUT.error(
            f"column {named!r} is listed as an input, and the module's forward has no argument "
            "for it.",
            fix=f"Name an argument {named}, or leave the column out of the list.",
            column=named,
        )
    roles = {role: name for role, name in encoder.roles.items() if name not in unread}
    return replace(encoder, roles=roles)


def refuse_raw(table: Table, roles: Mapping[str, str], extras: Iterable[str]) -> None:
    """Refuse columns of images or audio that forward would get as they are in the data."""
    role = next((role for role in SEVERAL if role in roles), None)
    for name in extras:
        if role is None or not holds(table, name, role) or is_class_map(table, name):
            continue
        raise RAW_INPUT.error(
            f"column {name!r} is of the kind of {roles[role]!r} ({role}), and would be passed to "
            "forward as it is in the data, neither resized nor normalised.",
            fix=f"Name an argument {name}, or set columns.{role}=[{roles[role]},{name}].",
            column=name,
        )
