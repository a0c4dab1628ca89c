"""Columns of any Arrow type converted to the few types that the rest of the package reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from surefit.core.foreign import parse_json
from surefit.data.cache import fingerprint
from surefit.data.cache_entry import open_entry
from surefit.data.column_types import is_list, list_axes
from surefit.data.data_rules import CORRUPT_FILE, WRONG_TYPE, check_expansion
from surefit.data.table import CHUNK_ROWS
from surefit.errors import UsageError

FORMAT_VERSION = 2


def plain_schema(schema: pa.Schema, shown: str) -> pa.Schema:
    """Return the schema with plain types; an error where a column has none, or two share a name."""
    fields, named = [], class_names(schema)
    for field in schema:
        kind = named_type(field.type) if field.name in named else plain_type(field.type)
        if kind is None:
            message = f"{shown}: column {field.name!r} has the unsupported Arrow type {field.type}."
            raise WRONG_TYPE.error(message, file=shown, column=field.name)
        fields.append(pa.field(field.name, kind))
    doubled = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if doubled is not None:
        message = f"{shown} has the column {doubled!r} twice."
        raise CORRUPT_FILE.error(message, fix="Rename one of them.", file=shown, column=doubled)
    return pa.schema(fields)


def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the plain type that holds the same values; None if there is none.

    >>> plain_type(pa.list_(pa.dictionary(pa.int32(), pa.string())))
    ListType(list<item: string>)
    """
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.large_binary()
    if types.is_decimal(kind):
        return pa.float64()
    if types.is_timestamp(kind) and kind.unit == "ns":  # Python has no nanoseconds
        return pa.timestamp("us", kind.tz)
    if (types.is_time64(kind) or types.is_duration(kind)) and kind.unit == "ns":
        return pa.time64("us") if types.is_time64(kind) else pa.duration("us")
    if types.is_struct(kind):
        parts = [(kind.field(i).name, plain_type(kind.field(i).type)) for i in range(len(kind))]
        if any(part is None for _, part in parts):
            return None
        return pa.struct(parts)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _plain_list(kind)
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        value = plain_type(kind.value_type)
        return None if value is None else pa.large_list(value)
    return None if types.is_union(kind) or types.is_interval(kind) else kind


def _plain_list(kind: pa.DataType) -> pa.DataType | None:
    value = plain_type(kind.value_type)
    if value is None:
        return None
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(value, kind.list_size) if kind.list_size else pa.large_list(value)
    return pa.large_list(value) if pa.types.is_large_list(kind) else pa.list_(value)


def is_plain(schema: pa.Schema, shown: str) -> bool:
    """Return whether every column is read without conversion."""
    return bool(plain_schema(schema, shown).types == schema.types)


def to_plain(
    batch: pa.RecordBatch, schema: pa.Schema, named: Mapping[str, list[str]]
) -> pa.RecordBatch:
    """Return the batch in a plain schema; `named` has the class names of columns of class ids."""
    columns = [
        with_names(column, named[field.name]) if field.name in named else _cast(column, field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_run_end_encoded(column.type):
        column = column.take(pa.array(range(len(column)), pa.int64()))
        column = pa.compute.run_end_decode(column)
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    return column if column.type == kind else column.cast(kind, safe=False)


def in_cache(
    key: str, schema: pa.Schema, shown: str, batches: Callable[[], Iterator[pa.RecordBatch]]
) -> pa.Table:
    """Batches converted once to an Arrow file in the cache, which is then memory-mapped."""

    def fill(folder: Path) -> None:
        named, plain = class_names(schema), plain_schema(schema, shown)
        path = str(folder / "table.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, plain) as writer:
            for batch in batches():
                for start in range(0, len(batch), CHUNK_ROWS):
                    writer.write_batch(to_plain(batch.slice(start, CHUNK_ROWS), plain, named))
                    check_expansion(shown, sink.tell())

    return open_entry(
        "tables",
        fingerprint("batches", FORMAT_VERSION, key),
        fill,
        lambda folder: map_arrow(folder / "table.arrow"),
    )


def map_arrow(path: Path) -> pa.Table:
    """Return an Arrow file that surefit wrote, memory-mapped."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the class names of each column of ClassLabels, or of lists of them."""
    try:
        text = (schema.metadata or {})[b"huggingface"]
        features = parse_json(text, dict[str, Any], "huggingface")["info"]["features"]
        pairs = {name: _names(features.get(name)) for name in schema.names}
    except (KeyError, TypeError, AttributeError, UsageError):
        return {}  # not written by `datasets`, or by another version of it
    return {
        name: names
        for name, names in pairs.items()
        if names and pa.types.is_integer(list_axes(schema.field(name).type)[1])
    }


def _names(feature: Any) -> list[str] | None:
    if isinstance(feature, dict) and "feature" in feature:
        feature = feature["feature"]
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return None
    return [str(name) for name in feature.get("names") or []]


def named_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column after its class ids are replaced by names."""
    return pa.list_(pa.string()) if is_list(kind) else pa.string()


def with_names(column: pa.Array, names: list[str]) -> pa.Array:
    """Return the column with class names instead of ids; -1, which has no name, becomes null."""

    def name(value: Any) -> Any:
        if isinstance(value, list):
            return [name(item) for item in value]
        return names[value] if value is not None and 0 <= value < len(names) else None

    return pa.array([name(value) for value in column.to_pylist()], named_type(column.type))
