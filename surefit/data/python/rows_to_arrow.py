"""Python rows to an Arrow file in the cache, in one pass; each column gets one type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.core import files
from surefit.core.digests import hash_file
from surefit.data.arrow_types import map_arrow
from surefit.data.arrow_writer import Arrays, ArrowWriter, ColumnFaultError
from surefit.data.cache import scratch_in_cache
from surefit.data.cache_entry import open_entry
from surefit.data.data_rules import WRONG_TYPE
from surefit.data.stored_messages import storable
from surefit.data.table import CHUNK_ROWS, Source, Table
from surefit.data.written_values import describe_missing
from surefit.findings import Finding

CHUNK_BYTES = 16 * 2**20
FILE = "table.arrow"
SHOWN = "the Python objects passed in"

Row = Mapping[str, Any]


def open_rows(rows: Iterable[Row], findings: Iterable[Finding] = ()) -> Table:
    """Return a Table of rows whose values are text, numbers, lists, dicts, arrays, tensors or
    images.

    The rows are iterated once and written as they come.
    """
    with scratch_in_cache() as folder:
        path = folder / FILE
        found = _write(rows, path)
        key = hash_file(path)
        table = open_entry(
            "tables",
            key,
            lambda made: files.move_inside(path, made / FILE),
            lambda made: map_arrow(made / FILE),
        )
    return Table(table, (Source(SHOWN, 0),), key, (*findings, *found))


def _write(rows: Iterable[Row], path: Path) -> Iterator[Finding]:
    try:
        with ArrowWriter(path, WRONG_TYPE, empty_arrays=True) as writer:
            for chunk in _chunks(rows):
                writer.append_rows(chunk)
    except ColumnFaultError as fault:
        message = fault.message("row", fault.rows)
        raise fault.rule.error(message, row=fault.rows[0], column=fault.column) from None
    return describe_missing(writer.missing, "numbers")


def python_value(value: Any) -> Any:
    """A value as Arrow stores it: tensors and images become arrays, arrays of one value numbers."""
    if hasattr(value, "detach"):
        from surefit.data.formats.torch_files import as_numpy

        value = as_numpy(value)
    elif type(value).__module__.startswith("PIL."):
        value = np.asarray(value if value.mode in ("L", "RGB", "RGBA") else value.convert("RGB"))
    elif isinstance(value, Path):
        return str(value)
    elif isinstance(value, list):
        return storable(value)
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biuf":
        return value.tolist()
    return value


def as_arrow(row: Row, schema: pa.Schema, number: int) -> pa.Table:
    """Return one row as a table in memory, with the columns of a table that was written before."""
    columns = {}
    for name in schema.names:
        value, kind = python_value(row.get(name)), schema.field(name).type
        try:
            if isinstance(value, np.ndarray):
                columns[name] = Arrays(name, [value], number, kind).join()
            else:
                columns[name] = pa.array([value], kind)
        except ColumnFaultError as fault:
            message = fault.message("row", fault.rows)
            raise fault.rule.error(message, row=number, column=name) from None
        except (pa.ArrowException, ValueError, TypeError) as error:
            what = f"row {number}: column {name!r} is {str(value)[:40]!r} ({error})"
            raise WRONG_TYPE.error(what[:300], row=number, column=name) from None
    return pa.table(columns)


def _chunks(rows: Iterable[Row]) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        chunk.append({str(name): python_value(value) for name, value in row.items()})
        size += sum(getattr(value, "nbytes", 0) for value in chunk[-1].values())
        if len(chunk) == CHUNK_ROWS or size > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
