"""Rows of a Table, encoded a few hundred at a time: by this process, or by all cores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.batches.loading import by_thread
from surefit.data.cell_files import FILE_ROLES
from surefit.data.column_types import is_array
from surefit.data.table import Table
from surefit.encode.encoded_row import EncodedRow, RowFaultError, SkipRowError
from surefit.encode.row_encoder import Begun, RowEncoder
from surefit.encode.text.batch_tokenizing import Tokenized
from surefit.forked_map import forked_map, num_children

if TYPE_CHECKING:
    from surefit.encode.augment.augmented_copies import AugmentedCopies

CHUNK_ROWS = 256
CHUNK_CHARACTERS = 1_000_000
"""The largest number of rows, and of characters, that are tokenized together."""
CHUNK_BYTES = 4_000_000
"""The largest size of encoded rows that a process returns together."""
WORK_BYTES = 80_000_000
"""What a child needs to encode such a chunk: a tokenizer takes 50 bytes a character, a photograph
is decoded to 40 MB, and the chunks it has encoded wait to be written."""
FIRST_ROWS = 4
"""Rows that are encoded before all others, to know how large encoded rows are."""
CHUNK_FILES = 16
"""The largest number of rows with images or audio that a process decodes before it returns them."""
TEXTS_PER_FILE = 50
"""How many texts are tokenized in the time that one image or recording is decoded in."""

Copy = tuple[int, tuple[EncodedRow, ...] | SkipRowError, bool]
Made = tuple[tuple[EncodedRow, ...], list[Copy]] | SkipRowError | RowFaultError
"""The blocks of a row and its augmented copies, or why there are none."""
Chunk = list[tuple[int, Made]]
"""Numbers of rows, and what became of them."""


@contextmanager
def encoded_chunks(
    encode: RowEncoder,
    table: Table,
    rows: npt.NDArray[np.int64],
    copies: AugmentedCopies | None,
) -> Iterator[Iterator[Chunk]]:
    """The rows in order, encoded, a chunk at a time.

    Texts of many rows, images and audio are encoded by all cores, unless the code is the user's
    own: it may count on being called in one process.
    """
    first = _encode_chunk(encode, table, copies, rows[:FIRST_ROWS])
    rest, most = rows[FIRST_ROWS:], num_in_chunk(map(_num_bytes, first))
    decodes = _decodes(encode, table)
    work = len(rest) * (TEXTS_PER_FILE if decodes else 1)
    is_shared = encode.encoder.tokenizer is not None or decodes
    children = num_children(work, WORK_BYTES) if is_shared and _is_ours(encode, copies) else 0
    if not children:
        yield chain([first], _by_one_process(encode, table, rest, copies, most))
        return
    row_bytes = table.arrow.nbytes // max(1, table.num_rows)
    most = min(most, CHUNK_FILES) if decodes else most
    size = max(1, min(most, CHUNK_CHARACTERS // max(1, row_bytes)))
    parts = (rest[start : start + size] for start in range(0, len(rest), size))
    with forked_map(partial(_encode_chunk, encode, table, copies), parts, children) as chunks:
        yield chain([first], chunks)


def num_in_chunk(sizes: Iterable[int]) -> int:
    """How many rows are encoded together, if encoded rows have these sizes in bytes.

    >>> num_in_chunk([600_000, 0]), num_in_chunk([12_000]), num_in_chunk([])
    (6, 256, 256)
    """
    return max(1, min(CHUNK_ROWS, CHUNK_BYTES // max(1, *sizes, 1)))


def _num_bytes(encoded: tuple[int, Made]) -> int:
    """The size of an encoded row and its augmented copies; 0 for one that is dropped."""
    made = encoded[1]
    if isinstance(made, Exception):
        return 0
    copies = [blocks for _, blocks, _ in made[1] if not isinstance(blocks, Exception)]
    blocks = chain(made[0], *copies)
    return sum(value.nbytes for block in blocks for value in block.columns.values())


def _is_ours(encode: RowEncoder, copies: AugmentedCopies | None) -> bool:
    own = encode.encode.__module__.startswith("surefit.")
    return own and (copies is None or copies.function is None)


def _decodes(encode: RowEncoder, table: Table) -> bool:
    """Whether rows have images or audio that must be decoded, which takes far longer than text."""
    columns = (encode.encoder.roles.get(role) for role in FILE_ROLES)
    kinds = [table.column_type(name) for name in columns if name in table.columns]
    return any(not is_array(kind) for kind in kinds)


def _encode_chunk(
    encode: RowEncoder,
    table: Table,
    copies: AugmentedCopies | None,
    rows: npt.NDArray[np.int64],
) -> Chunk:
    chunk: Chunk = []
    for numbers, begun in _begun(encode, table, rows, CHUNK_ROWS):
        chunk += _finished(encode, copies, numbers, begun, encode.tokenize(begun))
    return chunk


def _by_one_process(
    encode: RowEncoder,
    table: Table,
    rows: npt.NDArray[np.int64],
    copies: AugmentedCopies | None,
    most: int,
) -> Iterator[Chunk]:
    """While a thread tokenizes a chunk, which releases the GIL, the next one is read."""

    def tokenized(chunk: tuple[list[int], list[Begun]]) -> tuple[Any, ...]:
        return (*chunk, encode.tokenize(chunk[1]))

    for chunk in by_thread(_begun(encode, table, rows, most), tokenized):
        yield _finished(encode, copies, *chunk)


def _begun(
    encode: RowEncoder, table: Table, rows: npt.NDArray[np.int64], most: int
) -> Iterator[tuple[list[int], list[Begun]]]:
    """Numbers and begun rows, at most so many at a time, or fewer where their texts are long."""
    numbers: list[int] = []
    begun: list[Begun] = []
    size = 0
    for number, raw in zip(rows.tolist(), table.rows(rows), strict=True):  # type: ignore[arg-type]
        numbers.append(number)
        begun.append(encode.begin(raw))
        texts = begun[-1].encoding.texts if begun[-1].encoding else ()
        size += sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts)
        if len(begun) == most or size > CHUNK_CHARACTERS:
            yield numbers, begun
            numbers, begun, size = [], [], 0
    if begun:
        yield numbers, begun


def _finished(
    encode: RowEncoder,
    copies: AugmentedCopies | None,
    numbers: list[int],
    begun: list[Begun],
    tokens: list[list[Tokenized]],
) -> Chunk:
    return [
        (number, _finish(encode, copies, number, row, own))
        for number, row, own in zip(numbers, begun, tokens, strict=True)
    ]


def _finish(
    encode: RowEncoder,
    copies: AugmentedCopies | None,
    number: int,
    row: Begun,
    tokens: list[Tokenized],
) -> Made:
    try:
        made = encode.finish(row, tokens)
        if copies is None:
            return made, []
        again = partial(encode.encode_read, extras=row.extras)
        return made, list(copies.encode(row.row, number, made, again))
    except (SkipRowError, RowFaultError) as failure:
        return failure
