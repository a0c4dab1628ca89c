"""Several columns of one role: two images per row, as siamese networks and stereo models read them.

The first has the role itself; each extra one has a role of its own, such as `image+right` for the
column `right`, and is read as the first one is.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from surefit.config import joint_name, joint_parts
from surefit.data.column_types import (
    CHANNELS,
    array_rank,
    is_array,
    is_list,
    is_text,
    list_axes,
    may_hold_audio,
    may_hold_images,
)
from surefit.data.file_columns import kind_named
from surefit.data.row_arrays import row_shape
from surefit.data.table import Table

SIGN = "+"
LOOKED_AT = 32
MOST_CLASSES = 32
SEVERAL = ("image", "audio")
"""Roles that several columns may have."""


def extra_role(role: str, column: str) -> str:
    """The role of an extra column.

    >>> extra_role("image", "right")
    'image+right'
    """
    return f"{role}{SIGN}{column}"


def base_role(name: str, column: str) -> str:
    """The role that a column is read as: that of the first such column, or its own.

    >>> base_role("image+right", "right"), base_role("image", "left")
    ('image', 'image')
    """
    base, sign, rest = name.partition(SIGN)
    return base if sign and rest == column else name


def extra_roles(roles: Mapping[str, str]) -> dict[str, str]:
    """Each extra role, and the role that its column is read as.

    >>> extra_roles({"image": "left", "image+right": "right", "label": "same"})
    {'image+right': 'image'}
    """
    bases = {name: base_role(name, column) for name, column in roles.items()}
    return {name: base for name, base in bases.items() if base != name and base in roles}


def part_columns(chosen: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The user's columns with the first of each list alone, and extra roles of the others.

    The columns of other roles are one column of numbers, and stay together.

    >>> part_columns({"image": "[left, right]", "label": "[a, b]"})
    ({'image': 'left', 'label': '[a, b]'}, {'image+right': 'right'})
    """
    first = dict(chosen)
    extra: dict[str, str] = {}
    for role, name in chosen.items():
        parts = joint_parts(name) if role in SEVERAL else []
        if parts:
            first[role] = parts[0]
            extra |= {extra_role(role, part): part for part in parts[1:]}
    return first, extra


def list_columns(roles: Mapping[str, str]) -> dict[str, str]:
    """The columns by role as a config has them: several of one role are a list.

    >>> list_columns({"image": "left", "image+right": "right"})
    {'image': '[left, right]'}
    """
    extra = extra_roles(roles)
    listed = {role: [column] for role, column in roles.items() if role not in extra}
    for role, base in extra.items():
        listed[base].append(roles[role])
    return {role: joint_name(columns) for role, columns in listed.items()}


def holds(table: Table, column: str, role: str) -> bool:
    """Whether a column has what the role reads, judged by type, shape and files, not by name."""
    kind = table.column_type(column)
    if is_text(kind):
        return kind_named(table, column, lambda each: each.role == role) is not None
    if role == "audio":
        return may_hold_audio(kind, False)
    if not is_array(kind):
        return may_hold_images(kind, True) and not may_hold_audio(kind, False)
    if array_rank(kind) == 3:
        sizes = [axis.size for axis in row_shape(table, column).axes]
        return bool({sizes[0], sizes[2]} & {*CHANNELS})
    return may_hold_images(kind, False)


def is_class_map(table: Table, column: str) -> bool:
    """Whether a column has one small class number per pixel, as masks have."""
    axes, value = list_axes(table.column_type(column))
    if not (pa.types.is_integer(value) or pa.types.is_boolean(value)):
        return False
    if len(axes) == 3:
        sizes = [axis.size for axis in row_shape(table, column).axes]
        if 1 not in (sizes[0], sizes[2]):
            return False
    elif len(axes) != 2:
        return False
    values = table.arrow[column].slice(0, LOOKED_AT).combine_chunks()
    while is_list(values.type):
        values = values.flatten()
    return bool(pc.count_distinct(values).as_py() <= MOST_CLASSES)
