"""Data given from Python as a list of dicts to a Table."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.data.arrays import join_rows, nested_column, to_arrow
from surefit.data.cache import hash_bytes
from surefit.data.images import to_png
from surefit.data.records import write_arrow
from surefit.data.table import Source, Table
from surefit.errors import UsageError
from surefit.findings import fail

SHOWN = "the rows given from Python"


def open_object(data: Any) -> Table:
    """A Table of data that is in memory already."""
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return open_rows(data)
    raise UsageError(
        f"data is a {type(data).__name__}; expected a path, several paths or a list of dicts.",
        "Pass data='train.jsonl' or data=[{'text': …, 'label': …}, …].",
    )


def open_rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A Table of a list of dicts; values may be text, numbers, lists, arrays or tensors."""
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise fail(
                "SF213", f"row {place} is a {type(row).__name__}; expected a dict.", row=place
            )
    if not rows:
        return Table(pa.table({}), (Source(SHOWN, 0),), "empty")
    named = ((name, value) for row in rows for name, value in row.items())
    arrays = list(dict.fromkeys(name for name, value in named if np.ndim(_numpy(value)) > 0))
    plain = [{k: _item(v) for k, v in row.items() if k not in arrays} for row in rows]
    columns = _plain_columns(plain)
    for name in arrays:
        columns[name] = _array_column(name, [row.get(name) for row in rows])
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return Table(table, (Source(SHOWN, 0),), hash_bytes(sink.getvalue()))


def _numpy(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return value if isinstance(value, np.ndarray) else None


def _item(value: Any) -> Any:
    if hasattr(value, "detach") or isinstance(value, np.generic | np.ndarray):
        return value.item()
    if hasattr(value, "getbands"):  # a Pillow image
        return to_png(value)
    return value


def _plain_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "rows"
        write_arrow(lambda: ((i, dict(row)) for i, row in enumerate(rows)), target, SHOWN, "row")
        with pa.OSFile(str(target / "table.arrow")) as file:
            table = pa.ipc.open_file(file).read_all()
    return dict(zip(table.column_names, table.columns, strict=True))


def _array_column(name: str, given: Sequence[Any]) -> pa.Array:
    """One array per row; a row without one has no steps, and is dropped as empty."""
    first = next(array for value in given if np.ndim(array := _numpy(value)) > 0)
    nothing = first[:0]
    values = [nothing if value is None else _numpy(value) for value in given]
    for place, value in enumerate(values):
        if np.ndim(value) == 0:
            raise fail(
                "SF213",
                f"row {place}: column {name!r} holds a {type(given[place]).__name__}, but an "
                "array in other rows.",
                row=place,
                column=name,
            )
    if len({value.shape for value in values}) == 1:
        return to_arrow(np.stack(values))
    if first.ndim == 3 or (first.ndim == 2 and first.dtype == np.uint8):
        return nested_column(values)  # pictures, each of its own size
    return join_rows(values, f"column {name!r} of {SHOWN}")
