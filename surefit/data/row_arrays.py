"""Arrays with a value per row: mapped from files of their own, so that they take no memory.

A page that was written is kept by the system as long as there is room, and read again otherwise.
What is computed from such arrays is computed a block of rows at a time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.data.cache_use import open_cache

Array = npt.NDArray[Any]
FEW_ROWS = 1 << 16
"""Arrays of fewer rows are kept in memory."""
BLOCK_ROWS = 1 << 16


def new_array(num_rows: int, dtype: Any) -> Array:
    """An array of zeros in a file of the cache that has no name, and ends with the array.

    In memory, if it is small, or if there is no room on the disk.
    """
    kind = np.dtype(dtype)
    if num_rows <= FEW_ROWS:
        return np.zeros(num_rows, kind)
    try:
        with tempfile.TemporaryFile(dir=open_cache()) as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk would end the process
                os.posix_fallocate(file.fileno(), 0, num_rows * kind.itemsize)
            mapped = np.memmap(file, kind, "r+", shape=(num_rows,))
            return mapped.view(np.ndarray)
    except OSError:
        return np.zeros(num_rows, kind)


def blocks(num_rows: int) -> Iterator[slice]:
    """Neighbouring rows, some at a time.

    >>> list(blocks(3))
    [slice(0, 3, None)]
    """
    for start in range(0, num_rows, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, num_rows))


def number_rows(num_rows: int) -> Array:
    """The numbers 0, 1, 2 …"""
    made = new_array(num_rows, np.int64)
    for part in blocks(num_rows):
        made[part] = np.arange(part.start, part.stop)
    return made


def take(values: Array, rows: Array) -> Array:
    """`values[rows]`."""
    made = new_array(len(rows), values.dtype)
    for part in blocks(len(rows)):
        made[part] = values[rows[part]]
    return made


def places_of(chosen: npt.NDArray[np.bool_], wanted: bool = True) -> Array:
    """Where the value is the wanted one, ascending.

    >>> places_of(np.array([True, False, True])).tolist()
    [0, 2]
    """
    count = int(np.count_nonzero(chosen))
    made = new_array(count if wanted else len(chosen) - count, np.int64)
    end = 0
    for part in blocks(len(chosen)):
        found = np.flatnonzero(chosen[part] == wanted) + part.start
        made[end : end + len(found)] = found
        end += len(found)
    return made


def distinct(values: Array) -> tuple[Array, Array]:
    """The different values, ascending, and how often each occurs.

    >>> [found.tolist() for found in distinct(np.array([7, 5, 7], np.uint64))]
    [[5, 7], [1, 2]]
    """
    ordered = new_array(len(values), values.dtype)
    ordered[:] = values
    ordered.sort()
    begins = np.empty(len(values), bool)
    for part in blocks(len(values)):
        before = ordered[max(part.start - 1, 0) : part.stop - 1]
        begins[part.start + (part.start == 0) : part.stop] = (
            ordered[part][int(part.start == 0) :] != before
        )
    begins[:1] = True
    starts = places_of(begins)
    del begins
    names, sizes = take(ordered, starts), new_array(len(starts), np.int64)
    for part in blocks(len(starts)):
        ends = starts[part.start + 1 : part.stop + 1]
        if len(ends) < part.stop - part.start:
            ends = np.append(ends, len(values))
        sizes[part] = ends - starts[part]
    return names, sizes


def count_distinct(values: Array) -> int:
    """How many different values there are."""
    return len(distinct(values)[0])


def is_among(values: Array, ordered: Array) -> npt.NDArray[np.bool_]:
    """Which values occur in an ascending array.

    >>> is_among(np.array([3, 4]), np.array([1, 3])).tolist()
    [True, False]
    """
    found = np.zeros(len(values), bool)
    if len(ordered):
        for part in blocks(len(values)):
            place = np.minimum(np.searchsorted(ordered, values[part]), len(ordered) - 1)
            found[part] = ordered[place] == values[part]
    return found
