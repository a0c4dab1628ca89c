"""Several columns of images or of audio that a custom module reads, by name or by position."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from surefit.data.further_columns import (
    SEVERAL,
    further_role,
    holds,
    is_class_map,
)
from surefit.data.python.torch_data import is_unnamed
from surefit.data.roles import ROLES
from surefit.data.table import Table
from surefit.encode.encoder import Encoder
from surefit.findings import rule

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

WHAT = {"image": "images", "audio": "audio"}
NAMES_IN_BATCHES = {"labels", *(role.batch_column for role in ROLES.values())}
"""Names that a batch has for other columns."""


def lead_input(
    table: Table, arguments: Sequence[str], taken: Iterable[str], possible: Iterable[str]
) -> dict[str, str]:
    """Of several columns of images or audio, the first that the module's forward names."""
    free = [name for name in table.columns if name not in {*taken}]
    for role in SEVERAL:
        named = [name for name in arguments if name in free and holds(table, name, role)]
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
    """The further roles: `chosen` by the user, else columns that forward names like the first.

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
        further_role(role, name): name
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
            f"column {name!r} holds {WHAT[role]} as {roles[role]!r} does, and would be passed to "
            "forward as it is in the data, neither resized nor normalised.",
            fix=f"Name an argument {name}, or set columns.{role}=[{roles[role]},{name}].",
            column=name,
        )
