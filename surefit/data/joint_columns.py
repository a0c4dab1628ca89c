"""Several columns of numbers as one target: `columns.label: [casual, registered]`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surefit.config import joint_parts
from surefit.data.cache import fingerprint
from surefit.data.column_types import describe_type, is_list, is_number, is_text
from surefit.data.data_rules import WRONG_TYPE
from surefit.data.numbers import read_number
from surefit.data.table import Table


def join_columns(table: Table, names: Iterable[str]) -> Table:
    """The table with a list of numbers for each name that stands for several of its columns.

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
    row = _first_that_is_no_number(table, column) if is_text(kind) else None
    place = {} if row is None else table.where(row)
    cell = "" if row is None else f": {str(table.arrow[column][row])[:40]!r} in row {place['row']}"
    raise WRONG_TYPE.error(
        f"column {column!r} is one of several targets and holds {describe_type(kind)}{cell}; "
        "expected numbers.",
        {**place, "column": column},
        fix="Correct the value, name columns of numbers, or a single column.",
    )


def _first_that_is_no_number(table: Table, column: str) -> int | None:
    """The first row that made the column text."""
    cells = (cell.as_py() for cell in table.arrow[column])
    odd = (row for row, text in enumerate(cells) if text and read_number(text) is None)
    return next(odd, None)


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
    """A list of the values of each row; none where one of them is missing."""
    whole = not any(pa.types.is_floating(field.type) for field in batch.schema)
    kind: Any = pa.int64() if whole else pa.float64()
    columns = [pc.fill_null(column.cast(kind), 0).to_numpy(False) for column in batch.columns]
    missing = np.any([column.is_null().to_numpy(False) for column in batch.columns], axis=0)
    ends = np.arange(len(batch) + 1, dtype=np.int32) * len(columns)
    values = pa.array(np.stack(columns, axis=1).ravel(), kind)
    return pa.ListArray.from_arrays(pa.array(ends), values, mask=pa.array(missing))
