"""Class names that `datasets` stores in the schema of a column of class ids."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from surefit.data.column_types import is_list


def class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """The class names of each column of ClassLabels, or of lists of them."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        pairs = {name: _names(features.get(name)) for name in schema.names}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}  # not written by `datasets`, or by another version of it
    return {
        name: names
        for name, names in pairs.items()
        if names and _is_integer(schema.field(name).type)
    }


def _names(feature: Any) -> list[str] | None:
    if isinstance(feature, dict) and "feature" in feature:
        feature = feature["feature"]
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return None
    return [str(name) for name in feature.get("names") or []]


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind.value_type if is_list(kind) else kind))


def named_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column after its class ids are replaced by names."""
    return pa.list_(pa.string()) if is_list(kind) else pa.string()


def with_names(column: pa.Array, names: list[str]) -> pa.Array:
    """The column with class names instead of ids; -1, which has no name, becomes null."""

    def name(value: Any) -> Any:
        if isinstance(value, list):
            return [name(item) for item in value]
        return names[value] if value is not None and 0 <= value < len(names) else None

    return pa.array([name(value) for value in column.to_pylist()], named_type(column.type))
