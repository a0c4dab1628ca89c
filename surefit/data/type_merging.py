"""The narrowest Arrow type that holds the values of two types."""

from __future__ import annotations

import pyarrow as pa

from surefit.data.column_types import list_axes


def merge_types(known: pa.DataType, found: pa.DataType) -> pa.DataType:
    """The type that holds both; raises ArrowException if there is none.

    >>> str(merge_types(pa.list_(pa.float32(), 3), pa.list_(pa.float32(), 4)))
    'large_list<item: float>'
    """
    (axes, value), (other, other_value) = list_axes(known), list_axes(found)
    both_lists = pa.types.is_list(known) and pa.types.is_list(found)  # Arrow merges those itself
    if axes and other and known != found and not both_lists:
        deep, shallow = (axes, other) if len(axes) >= len(other) else (other, axes)
        leaf = value if shallow is axes else other_value
        if len(deep) == len(shallow) or pa.types.is_null(leaf):
            sizes = [
                size if place >= len(shallow) or shallow[place] == size else None
                for place, size in enumerate(deep)
            ]
            if len(deep) == len(shallow):
                return nested_list(tuple(sizes), merge_types(value, other_value))
            return nested_list(tuple(sizes), other_value if shallow is axes else value)
    pair = [pa.schema([pa.field("x", kind)]) for kind in (known, found)]
    return pa.unify_schemas(pair, promote_options="permissive").field("x").type


def nested_list(sizes: tuple[int | None, ...], value: pa.DataType) -> pa.DataType:
    """The type of nested lists with these sizes, None where they vary, and this value type."""
    for size in reversed(sizes):
        value = pa.large_list(value) if size is None else pa.list_(value, size)
    return value
