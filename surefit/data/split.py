"""Training and evaluation rows: a pure function of the rows' content, the share and the seed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.data.table import Table

Rows = npt.NDArray[np.int64]

NO_CONTENT = 0
"""The hash of every row whose values are all missing or blank text."""


@dataclass(frozen=True)
class Split:
    """Row numbers of the two sides, ascending, and how many rows repeat another one."""

    train: Rows
    evaluation: Rows
    num_duplicates: int


def hash_rows(table: Table, columns: Sequence[str]) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of the given columns of each row; equal rows have equal hashes.

    Rows without content have NO_CONTENT: they are no examples that could be repeated or leaked.
    """
    hashes = np.empty(table.num_rows, np.uint64)
    chosen = Table(table.arrow.select(list(columns)), table.sources, table.key)
    for place, row in enumerate(chosen.rows()):
        if all(
            value is None or (isinstance(value, str) and not value.strip())
            for value in row.values()
        ):
            hashes[place] = NO_CONTENT
            continue
        digest = hashlib.blake2b(digest_size=8)
        for value in row.values():
            digest.update(_bytes(value))
            digest.update(b"\0")
        hashes[place] = int.from_bytes(digest.digest(), "little")
    return hashes


def _bytes(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return repr(value.shape).encode() + np.ascontiguousarray(value).tobytes()
    return repr(value).encode("utf-8", "surrogatepass")


def split_rows(hashes: npt.NDArray[np.uint64], eval_share: float, seed: int) -> Split:
    """Hold out `eval_share` of the rows at random; rows with equal hashes stay on one side.

    >>> split = split_rows(np.array([1, 2, 3, 4, 4, 5, 6, 7, 8, 9], np.uint64), 0.2, seed=0)
    >>> len(split.train), len(split.evaluation)
    (8, 2)
    """
    num_rows = len(hashes)
    _, group_of, sizes = np.unique(hashes, return_inverse=True, return_counts=True)
    wanted = round(num_rows * eval_share)
    if eval_share > 0 and num_rows > 1:
        wanted = max(1, wanted)
    order = np.random.default_rng([seed, 0x5911]).permutation(len(sizes))
    held = np.zeros(len(sizes), bool)
    room = min(wanted, num_rows - 1)
    for group in order:
        if room == 0 or len(sizes) == 1:
            break
        if sizes[group] <= room:
            held[group] = True
            room -= int(sizes[group])
    is_held = held[group_of]
    rows = np.arange(num_rows)
    num_blank = max(0, int((hashes == NO_CONTENT).sum()) - 1)
    return Split(rows[~is_held], rows[is_held], num_rows - len(sizes) - num_blank)
