"""Whether the encoded rows will fit on the disk of the cache, from a sample of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from surefit.data.cache import cache_folder
from surefit.data.table import Table
from surefit.disk_space import free_bytes
from surefit.encode.encoded_row import RowFaultError, SkipRowError
from surefit.encode.row_encoder import RowEncoder
from surefit.findings import rule
from surefit.gigabytes import show_size

if TYPE_CHECKING:
    from surefit.encode.augment.augmented_copies import AugmentedCopies

NO_ROOM_IN_CACHE = rule(
    "SF862",
    "error",
    "the encoded rows do not fit on the disk of the cache",
    why="Encoding would stop when the disk is full.",
    fix="Free some space (surefit cache clean), or choose a folder on another disk with "
    "--set cache=FOLDER.",
)

SAMPLED_ROWS = 64
LARGE_ROW_BYTES = 1_000_000
"""A disk with so much room for every row is not looked at more closely."""
ROW_BYTES, COLUMN_BYTES = 24, 8
"""Numbers that the Store keeps of each row, and of each row of a ragged column."""
SURE_SHARE = 0.9
"""Rows differ: the data is refused if even this share of the estimate is not free."""


def check_room(
    table: Table,
    rows: npt.NDArray[np.int64],
    encode: RowEncoder,
    copies: AugmentedCopies | None,
) -> None:
    """Refuse, before anything is written, rows whose encoded form does not fit in the cache."""
    num_rows = len(rows) * (copies.factor if copies is not None else 1)
    free = free_bytes(cache_folder())
    if not num_rows or free > num_rows * LARGE_ROW_BYTES:
        return
    places = np.unique(np.linspace(0, len(rows) - 1, min(SAMPLED_ROWS, len(rows))).astype(int))
    one = _mean_bytes(table, rows[places], encode)
    if SURE_SHARE * one * num_rows > free:
        raise NO_ROOM_IN_CACHE.error(
            f"{num_rows:,} encoded rows take about {show_size(round(one * num_rows))}, and "
            f"{show_size(free)} are free in the cache folder {cache_folder()}."
        )


def _mean_bytes(table: Table, rows: npt.NDArray[np.int64], encode: RowEncoder) -> float:
    """The mean size of these rows in a Store; rows that are dropped or faulty take nothing."""
    total = 0
    for raw in table.rows(rows.tolist()):
        try:
            made = encode(raw)
        except (SkipRowError, RowFaultError):  # counted and reported when they are encoded
            continue
        for row in made:
            values = sum(value.nbytes + COLUMN_BYTES for value in row.columns.values())
            total += ROW_BYTES + values
    return total / len(rows)
