"""Arrays that must be converted: written once to the cache, in chunks, then memory-mapped."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.data.cache_entry import open_entry

CHUNK_BYTES = 1 << 24
FILE = "array.npy"


def cached_array(key: str, fill: Callable[[Path], None]) -> npt.NDArray[Any]:
    """The cached array of a key; if there is none, `fill` writes it to a `.npy` file."""
    return open_entry("arrays", key, lambda folder: fill(folder / FILE), _map)


def _map(folder: Path) -> npt.NDArray[Any]:
    return np.asarray(np.load(folder / FILE, mmap_mode="r", allow_pickle=False))


def write_in_chunks(
    path: Path,
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    rows: Callable[[int, int], npt.NDArray[Any]],
) -> None:
    """Write an array a few megabytes at a time; `rows(start, end)` returns that range of rows."""
    target = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    per_row = max(1, math.prod(shape[1:])) * target.dtype.itemsize
    size = max(1, CHUNK_BYTES // per_row)
    for start in range(0, shape[0], size):
        target[start : start + size] = rows(start, start + size)
    target.flush()
