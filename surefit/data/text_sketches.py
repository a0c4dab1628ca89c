"""Sketches of texts: 64 bytes a row, of which texts that share most of their words share many.

A sketch is a MinHash of pairs of adjacent words, computed for a few megabytes of text at a time.
Pairs that many rows have, as boilerplate and templates do, are left out: they do not tell texts
apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from surefit.data.column_types import is_dialogue, is_text, is_text_list
from surefit.data.split import Rows, sample_rows
from surefit.data.table import Table, num_at_once, take_rows

Words = npt.NDArray[np.uint64]

NUM_HASHES = 16
COUNTED_ROWS = 100_000
"""Rows of which the pairs of words are counted."""
COMMON_ROWS = 24
"""A pair of words that more of the counted rows have is left out."""
FEWEST_PAIRS = 4
"""A text with fewer pairs of words left has no sketch."""
_CHUNK_BYTES = 1 << 21
_CHUNK_ROWS = 16_384
_COUNTERS = 1 << 22
_MASK = np.uint64(_COUNTERS - 1)
_CONTENT = ("content", "value", "text")
_BASE, _ONE = 0x9E3779B97F4A7C15, 1


@dataclass(frozen=True)
class Sketches:
    """The sketch of each row that has one, (N, 16), and the places of these rows."""

    values: npt.NDArray[np.uint32]
    places: Rows


def text_columns(table: Table, columns: Mapping[str, str]) -> list[str]:
    """Return columns that hold texts, lists of texts or dialogues; names of files are no texts."""
    known = [name for name in dict.fromkeys(columns.values()) if name in table.columns]
    return [n for n in known if _reads(table.column_type(n)) and n not in table.files]


def _reads(kind: pa.DataType) -> bool:
    if is_dialogue(kind):
        return any(is_text(kind.value_type.field(n).type) for n in _fields_of(kind))
    return is_text(kind) or is_text_list(kind)


def _fields_of(kind: pa.DataType) -> list[str]:
    return [n for n in _CONTENT if kind.value_type.get_field_index(n) >= 0]


def common_pairs(table: Table, columns: Sequence[str], rows: Rows) -> npt.NDArray[np.bool_]:
    """Return which hashed pairs of words too many rows have, counted in a sample of the rows."""
    counts = np.zeros(_COUNTERS, np.int32)
    sample = rows[sample_rows(len(rows), COUNTED_ROWS, 0)]
    for pairs, row_of, _ in _counted_pairs(table, columns, sample):
        seen = np.sort(row_of * _COUNTERS + (pairs & _MASK).astype(np.int64))  # faster than unique
        np.add.at(counts, seen[np.diff(seen, prepend=-1) > 0] % _COUNTERS, 1)
    return counts > COMMON_ROWS


def sketch(
    table: Table, columns: Sequence[str], rows: Rows, common: npt.NDArray[np.bool_]
) -> Sketches:
    """Sketches of the given rows."""
    made: list[npt.NDArray[np.uint32]] = []
    places: list[Rows] = []
    first = 0
    for pairs, row_of, count in _counted_pairs(table, columns, rows):
        kept = ~common[pairs & _MASK]
        pairs, row_of = pairs[kept], row_of[kept]
        starts = np.flatnonzero(np.diff(row_of, prepend=-1))
        if len(starts):
            sizes = np.diff(np.append(starts, len(row_of)))
            enough = sizes >= FEWEST_PAIRS
            made.append(_min_hashes(pairs, starts)[enough])
            places.append(first + row_of[starts][enough])
        first += count
    if not made:
        return Sketches(np.empty((0, NUM_HASHES), np.uint32), np.empty(0, np.int64))
    return Sketches(np.concatenate(made), np.concatenate(places))


def _min_hashes(pairs: Words, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    values = np.empty((len(starts), NUM_HASHES), np.uint32)
    factors = np.random.default_rng(0x5E7).integers(1, 2**63, NUM_HASHES, np.uint64) * 2 + 1
    for place, factor in enumerate(factors):
        hashed = ((pairs * factor) >> np.uint64(32)).astype(np.uint32)
        values[:, place] = np.minimum.reduceat(hashed, starts)
    return values


def _counted_pairs(
    table: Table, columns: Sequence[str], rows: Rows
) -> Iterator[tuple[Words, Rows, int]]:
    """Hashed pairs of adjacent words, the place of the row of each, and the number of rows."""
    chosen = table.arrow.select(list(columns))
    batches = chosen.to_batches()
    ends = np.cumsum([len(batch) for batch in batches], dtype=np.int64)
    size = num_at_once(chosen, _CHUNK_ROWS)
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        texts = _texts(take_rows(batches, ends, some))
        sizes = np.diff(_offsets(texts))
        cuts = np.searchsorted(np.cumsum(sizes), np.arange(0, sizes.sum(), _CHUNK_BYTES)[1:])
        for part in np.split(np.arange(len(texts)), np.unique(cuts)):
            if len(part):
                yield (*_word_pairs(texts.slice(int(part[0]), len(part))), len(part))


def _texts(table: pa.Table) -> pa.Array:
    """Return the texts of the rows' columns, joined."""
    parts = [_text_of(table[name].combine_chunks()) for name in table.column_names]
    joined = parts[0]
    if len(parts) > 1:
        joined = pc.binary_join_element_wise(*parts, _blank(), null_handling="skip")
    return pc.fill_null(joined, "")


def _text_of(column: pa.Array) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if is_text(column.type):
        return column.cast(pa.large_string())
    offsets = np.asarray(column.offsets).astype(np.int64)
    values = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    if is_dialogue(column.type):
        fields = [values.field(n) for n in _fields_of(column.type)]
        texts = [field.cast(pa.large_string()) for field in fields if is_text(field.type)]
        values = pc.coalesce(*texts, pa.scalar("", pa.large_string()))
    else:
        values = pc.fill_null(values.cast(pa.large_string()), "")
    lists = pa.LargeListArray.from_arrays(pa.array(offsets - offsets[0]), values)
    return pc.binary_join(lists, _blank())


def _offsets(texts: pa.Array) -> npt.NDArray[np.int64]:
    buffer = np.frombuffer(texts.buffers()[1], np.int64)
    return buffer[texts.offset : texts.offset + len(texts) + 1]


@cache
def _letters() -> npt.NDArray[np.uint8]:
    """Return bytes to letters in lower case; 0 for what separates words."""
    table = np.zeros(256, np.uint8)
    for byte in range(256):
        if chr(byte).isalnum() or byte >= 0x80:
            table[byte] = ord(chr(byte).lower()) if byte < 0x80 else byte
    return table


@cache
def _powers(inverse: bool) -> Words:
    """Powers of an odd base modulo 2^64, or of its inverse."""
    base = pow(_BASE, -1, 2**64) if inverse else _BASE
    powers = np.full(2 * _CHUNK_BYTES, base, np.uint64)
    powers[0] = _ONE
    return np.multiply.accumulate(powers)


def _word_pairs(texts: pa.Array) -> tuple[Words, Rows]:
    """Return a hash of each pair of adjacent words, and the place of its row.

    A word's hash is a polynomial of its letters, read off a cumulated sum over all texts.
    Characters of Chinese and Japanese are words of their own.
    """
    offsets = _offsets(texts)
    size = min(int(offsets[-1] - offsets[0]), 2 * _CHUNK_BYTES - 1)  # of one huge text, its start
    raw = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[0] + size]
    ends = np.minimum(offsets - offsets[0], size)
    letters = _letters()[raw]
    in_word = letters != 0
    begins = np.empty(size + 1, bool)
    begins[:size] = in_word
    begins[1:size] &= ~in_word[:-1]
    row_starts = ends[:-1][ends[:-1] < size]
    begins[row_starts] = in_word[row_starts]
    begins[:size] |= (raw >= 0xE3) & (raw <= 0xE9)
    begins[size] = True
    starts = np.flatnonzero(begins)
    sums = np.zeros(size + 1, np.uint64)
    np.cumsum(letters * _powers(False)[:size], out=sums[1:])
    words = (sums[starts[1:]] - sums[starts[:-1]]) * _powers(True)[starts[:-1]]
    words = _mixed(words)
    row_of = np.searchsorted(ends, starts[:-1], side="right") - 1
    same = row_of[1:] == row_of[:-1]
    pairs = _mixed(words[:-1] * np.uint64(3) + words[1:])
    return pairs[same], row_of[:-1][same]


def _mixed(values: Words) -> Words:
    values = (values ^ (values >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray(values ^ (values >> np.uint64(29)))


def _blank() -> pa.Scalar:
    """A space; pyarrow makes no scalar without importing pandas, so not before one is needed."""
    return pa.scalar(" ", pa.large_string())
