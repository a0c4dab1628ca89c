"""Which values of a column have another type than most."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from surefit.data.column_types import describe_type, is_text
from surefit.data.type_merging import merge_types

KEPT_ROWS = 4
UNSTORABLE = (pa.ArrowException, OverflowError, UnicodeEncodeError)
_SCALARS = (str, int, float, bool)


@dataclass
class _Group:
    """Values that one type holds."""

    kind: pa.DataType
    count: int = 0
    first: list[tuple[int, Any]] = field(default_factory=list)

    def add(self, row: int, value: Any) -> None:
        self.count += 1
        if len(self.first) < KEPT_ROWS:
            self.first.append((row, value))


@dataclass(frozen=True)
class OddValues:
    """The values of a column that have another type than most, with the first few rows."""

    rows: tuple[int, ...]
    count: int
    what: str
    """The message: what the first of these rows holds, and what most rows hold."""


def find_odd_values(values: Iterable[Any]) -> OddValues | None:
    """The values that have another type than most; None if one type holds all of them.

    >>> find_odd_values([1.5, 2, "12,5", None, 3]).what
    "holds text ('12,5'), but numbers in 3 other rows"
    """
    groups: list[_Group] = []
    known: dict[type, _Group] = {}
    for row, value in enumerate(values):
        if value is None:
            continue
        group = known.get(type(value)) or _group_of(value, groups)
        if group is not None:
            group.add(row, value)
            if type(value) in _SCALARS:
                known[type(value)] = group
    if len(groups) < 2:
        return None
    most = max(groups, key=lambda group: group.count)
    odd = sorted(row for group in groups if group is not most for row, _ in group.first)
    (row, value) = min((g.first[0] for g in groups if g is not most), key=lambda first: first[0])
    return OddValues(
        tuple(odd[:KEPT_ROWS]),
        sum(group.count for group in groups) - most.count,
        f"holds {_one(value)} ({str(value)[:40]!r}), but {_many(most.kind)} in {most.count} other "
        f"row{'s' if most.count > 1 else ''}",
    )


def _group_of(value: Any, groups: list[_Group]) -> _Group | None:
    """The group whose type can hold the value, or a new one; None if no type can."""
    try:
        kind = pa.array([value]).type
    except UNSTORABLE:
        return None
    for group in groups:
        try:
            group.kind = merge_types(group.kind, kind)
        except pa.ArrowException:
            continue
        return group
    groups.append(_Group(kind))
    return groups[-1]


def _one(value: Any) -> str:
    names = {str: "text", bool: "true/false", int: "a number", float: "a number", dict: "an object"}
    return names.get(type(value), f"a {type(value).__name__}")


def _many(kind: pa.DataType) -> str:
    if is_text(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "true/false"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "numbers"
    return "objects" if pa.types.is_struct(kind) else describe_type(kind)
