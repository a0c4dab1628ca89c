"""Training and validation rows: a pure function of the rows' content, the share and the seed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.atomic import new_folder
from surefit.data.cache import cache_folder, fingerprint
from surefit.data.table import Table

Rows = npt.NDArray[np.int64]

NO_CONTENT = 0
"""The hash of every row whose values are all missing or blank."""
HASH_VERSION = 2
FILE = "hashes.npy"


@dataclass(frozen=True)
class Split:
    """Row numbers of both sets, ascending, and how many rows are duplicates."""

    train: Rows
    evaluation: Rows
    num_duplicates: int


def sample_rows(num_rows: int, size: int | None, seed: int) -> Rows:
    """Numbers of `size` rows drawn by the seed, ascending; all rows if there are no more.

    >>> len(sample_rows(100, 5, seed=0)), sample_rows(3, 5, seed=0).tolist()
    (5, [0, 1, 2])
    """
    if size is None or size >= num_rows:
        return np.arange(num_rows)
    return np.sort(np.random.default_rng([seed, 0x5CA]).choice(num_rows, size, replace=False))


def hash_rows(
    table: Table, columns: Sequence[str], fold: bool = False, rows: Rows | None = None
) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of the given columns of each row; equal rows have equal hashes.

    With `fold`, so have rows whose texts differ only in case, spaces or punctuation. Rows without
    content get NO_CONTENT: they cannot be duplicates or leak.
    """
    if rows is not None and len(rows) < table.num_rows:
        return _hash_rows(table, columns, fold, rows)  # hashing a sample again is fast
    key = fingerprint("rows", HASH_VERSION, table.key, list(columns), fold)
    folder = cache_folder() / "hashes" / key
    if not folder.exists():
        with new_folder(folder) as temporary:
            np.save(temporary / FILE, _hash_rows(table, columns, fold))
    return np.asarray(np.load(folder / FILE, allow_pickle=False))


def _hash_rows(
    table: Table, columns: Sequence[str], fold: bool, rows: Rows | None = None
) -> npt.NDArray[np.uint64]:
    hashes = np.empty(table.num_rows if rows is None else len(rows), np.uint64)
    chosen = Table(table.arrow.select(list(columns)), table.sources, table.key)
    for place, row in enumerate(chosen.rows(rows)):  # type: ignore[arg-type]
        if all(
            value is None or (isinstance(value, str) and not value.strip())
            for value in row.values()
        ):
            hashes[place] = NO_CONTENT
            continue
        digest = hashlib.blake2b(digest_size=8)
        for value in row.values():
            digest.update(_bytes(_folded(value) if fold else value))
            digest.update(b"\0")
        hashes[place] = int.from_bytes(digest.digest(), "little")
    return hashes


_MARKS = re.compile(r"[.,;:!?…\"'“”‘’«»()]+(?=\s|\Z)|(?:(?<=\s)|\A)[.,;:!?…\"'“”‘’«»()]+(?!\d)")


def _folded(value: Any) -> Any:
    """Text in lower case, without punctuation around words, with single spaces.

    >>> _folded("“Where  is it?” – 3.50"), _folded("where is it – 3.50")
    ('where is it – 3.50', 'where is it – 3.50')
    """
    if isinstance(value, str):
        words = " ".join(_MARKS.sub(" ", value.casefold()).split())
        return words or value.casefold()  # texts of punctuation alone are not all equal
    if isinstance(value, Mapping):
        return {key: _folded(inner) for key, inner in value.items()}
    return [_folded(inner) for inner in value] if isinstance(value, list) else value


def _bytes(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return repr(value.shape).encode() + np.ascontiguousarray(value).tobytes()
    return repr(value).encode("utf-8", "surrogatepass")


def split_rows(hashes: npt.NDArray[np.uint64], eval_share: float, seed: int) -> Split:
    """Choose `eval_share` of the rows for validation; rows with equal hashes stay in one set.

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
