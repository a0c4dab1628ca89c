"""Several columns of the data that have one role together.

Of images and audio, the first column has the role itself; each extra one has a role of its own,
such as `image+right` for the column `right`, and is read as the first one is. Columns of numbers
that are one target (`columns.label=[casual, registered]`) become one column of lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surefit.config import joint_name, joint_parts
from surefit.data.cache import fingerprint
from surefit.data.column_types import describe_type, is_list, is_number, is_text
from surefit.data.data_rules import WRONG_TYPE
from surefit.data.table import Table
from surefit.data.written_values import read_number

SIGN = "+"
SEVERAL = ("image", "audio")
"""Roles that several columns may have."""


def extra_role(role: str, column: str) -> str:
    """Return the role of an extra column.

    >>> extra_role("image", "right")
    'image+right'
    """
    return f"{role}{SIGN}{column}"


def base_role(name: str, column: str) -> str:
    """Return the role that a column is read as: that of the first such column, or its own.

    >>> base_role("image+right", "right"), base_role("image", "left")
    ('image', 'image')
    """
    base, sign, rest = name.partition(SIGN)
    return base if sign and rest == column else name


def extra_roles(roles: Mapping[str, str]) -> dict[str, str]:
    """Return each extra role, and the role that its column is read as.

    >>> extra_roles({"image": "left", "image+right": "right", "label": "same"})
    {'image+right': 'image'}
    """
    bases = {name: base_role(name, column) for name, column in roles.items()}
    return {name: base for name, base in bases.items() if base != name and base in roles}


def part_columns(chosen: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the user's columns with the first of each list alone, and extra roles of the others.

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
    """Return the columns by role as a config has them: several of one role are a list.

    >>> list_columns({"image": "left", "image+right": "right"})
    {'image': '[left, right]'}
    """
    extra = extra_roles(roles)
    listed = {role: [column] for role, column in roles.items() if role not in extra}
    for role, base in extra.items():
        listed[base].append(roles[role])
    return {role: joint_name(columns) for role, columns in listed.items()}


def join_columns(table: Table, names: Iterable[str]) -> Table:
    """Return the table with a list of numbers for each name that stands for several of its columns.

    A table without any of them, such as one to predict for, stays as it is.
    """
    for name in names:
        parts = joint_parts(name)
        if name in table.columns or not any(part in table.columns for part in parts):
            continue
        for part in parts:
            table.require_column("columns.label", part)
            _require_numbers(table, part)
        table = _joined(table, name, parts)
    return table


def target_columns(table: Table, label: str) -> Iterator[tuple[Table, str]]:
    """Each target as a column of its own: the label's, or one for each number of its lists."""
    values = table.arrow[label]
    if not is_list(values.type):
        yield table, label
        return
    sizes = pc.min_max(pc.list_value_length(values)).as_py()
    if sizes["min"] != sizes["max"] or not is_number(values.type.value_type):
        return
    names = joint_parts(label) or [f"{label}[{place}]" for place in range(sizes["max"] or 0)]
    for place, name in enumerate(names):
        one = pa.table({name: pc.list_element(values, place)})
        yield replace(table, arrow=one), name


def _require_numbers(table: Table, column: str) -> None:
    kind = table.column_type(column)
    if is_number(kind):
        return
    cells = (cell.as_py() for cell in table.arrow[column]) if is_text(kind) else ()
    odd = (row for row, text in enumerate(cells) if text and read_number(text) is None)
    row = next(odd, None)  # the first that made the column text
    place = {} if row is None else table.where(row)
    cell = "" if row is None else f": {str(table.arrow[column][row])[:40]!r} in row {place['row']}"
    raise WRONG_TYPE.error(
        f"column {column!r} is one of several targets and holds {describe_type(kind)}{cell}; "
        "expected numbers.",
        {**place, "column": column},
        fix="Correct the value, name columns of numbers, or a single column.",
    )


def _joined(table: Table, name: str, parts: Sequence[str]) -> Table:
    chunks = [_lists(batch) for batch in table.arrow.select(list(parts)).to_batches()]
    arrow = table.arrow.drop_columns(list(parts))
    arrow = arrow.append_column(name, pa.chunked_array(chunks))
    sources = tuple(
        replace(source, columns=(*(c for c in source.columns if c not in parts), name))
        for source in table.sources
    )
    key = fingerprint(table.key, "joint", name)
    return replace(table, arrow=arrow, sources=sources, key=key)


def _lists(batch: pa.RecordBatch) -> pa.Array:
    """Return a list of the values of each row; none where one of them is missing."""
    whole = not any(pa.types.is_floating(field.type) for field in batch.schema)
    kind: Any = pa.int64() if whole else pa.float64()
    columns = [pc.fill_null(column.cast(kind), 0).to_numpy(False) for column in batch.columns]
    missing = np.any([column.is_null().to_numpy(False) for column in batch.columns], axis=0)
    ends = np.arange(len(batch) + 1, dtype=np.int32) * len(columns)
    values = pa.array(np.stack(columns, axis=1).ravel(), kind)
    return pa.ListArray.from_arrays(pa.array(ends), values, mask=pa.array(missing))
