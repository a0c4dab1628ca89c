"""`.npy` files with one row each that were opened as several: an image as planes, and the like.

An array in a file of its own may be many rows or one. Once a model is trained, what it reads
decides: images of many channels, vectors and sequences have one axis more than what was opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from surefit.data.cache import fingerprint
from surefit.data.column_types import array_rank, is_array, is_number
from surefit.data.formats.numpy_files import ragged_column, to_arrow
from surefit.data.row_arrays import row_shape
from surefit.data.table import Source, Table
from surefit.findings import Finding, note
from surefit.inputs.encoder import Encoder

Shape = tuple[int, ...]


def join_parts(
    table: Table, encoder: Encoder, is_row: Callable[[Shape], bool], role: str
) -> tuple[Table, list[Finding]]:
    """Return table with one row per file, where the array of each file is one; else as it is."""
    column = encoder.roles[role]
    are_arrays = all(Path(source.file).suffix == ".npy" for source in table.sources)
    if column not in table.columns or not are_arrays:
        return table, []
    sides = _sides(table, column)
    starts = [source.first_row for source in table.sources]
    counts = np.diff([*starts, table.num_rows]).tolist()
    if sides is None or not all(counts):
        return table, []
    shapes = [(count, *sides) for count in counts]
    if not all(map(is_row, shapes)):
        return table, []
    arrow = table.arrow.take(starts)
    place = arrow.column_names.index(column)
    message = f"{table.sources[0].file}: the array {list(shapes[0])} is read as one row."
    joined = replace(
        table,
        arrow=arrow.set_column(place, column, _joined(table, column, shapes)),
        sources=tuple(Source(each.file, row) for row, each in enumerate(table.sources)),
        key=fingerprint(table.key, "one row per file"),
    )
    return joined, [note(message, file=table.sources[0].file)]


def _sides(table: Table, column: str) -> Shape | None:
    """Return the sizes of a row's axes, if all rows have the same; a number has none."""
    kind = table.column_type(column)
    if is_number(kind):
        return ()
    if not is_array(kind) or array_rank(kind) > 2:
        return None
    sizes = [axis.size for axis in row_shape(table, column).axes]
    known = tuple(size for size in sizes if size)
    return known if len(known) == len(sizes) else None


def _joined(table: Table, column: str, shapes: Sequence[Shape]) -> pa.Array:
    parts = np.stack([row[column] for row in table.rows()])
    if len({*shapes}) == 1:
        return to_arrow(parts.reshape(-1, *shapes[0]))
    return ragged_column(parts, np.cumsum([0, *(shape[0] for shape in shapes)]))
