"""Rows of a Table, encoded a few hundred at a time: by this process, or by all cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
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
CHUNK_CHARACTERS = 4_000_000
"""The largest number of rows, and of characters, that are tokenized together."""
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
    decodes = _decodes(encode, table)
    work = len(rows) * (TEXTS_PER_FILE if decodes else 1)
    is_shared = encode.encoder.tokenizer is not None or decodes
    children = num_children(work) if is_shared and _is_ours(encode, copies) else 0
    if not children:
        yield _by_one_process(encode, table, rows, copies)
        return
    row_bytes = table.arrow.nbytes // max(1, table.num_rows)
    most = CHUNK_FILES if decodes else CHUNK_ROWS
    size = max(1, min(most, CHUNK_CHARACTERS // max(1, row_bytes)))
    parts = (rows[start : start + size] for start in range(0, len(rows), size))
    with forked_map(partial(_encode_chunk, encode, table, copies), parts, children) as chunks:
        yield chunks


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
    begun = [encode.begin(raw) for raw in table.rows(rows)]  # type: ignore[arg-type]
    return _finished(encode, copies, rows.tolist(), begun, encode.tokenize(begun))


def _by_one_process(
    encode: RowEncoder,
    table: Table,
    rows: npt.NDArray[np.int64],
    copies: AugmentedCopies | None,
) -> Iterator[Chunk]:
    """While a thread tokenizes a chunk, which releases the GIL, the next one is read."""

    def tokenized(chunk: tuple[list[int], list[Begun]]) -> tuple[Any, ...]:
        return (*chunk, encode.tokenize(chunk[1]))

    for chunk in by_thread(_begun(encode, table, rows), tokenized):
        yield _finished(encode, copies, *chunk)


def _begun(
    encode: RowEncoder, table: Table, rows: npt.NDArray[np.int64]
) -> Iterator[tuple[list[int], list[Begun]]]:
    """Numbers and begun rows, a few hundred at a time, or fewer where they are large."""
    numbers: list[int] = []
    begun: list[Begun] = []
    size = 0
    for number, raw in zip(rows.tolist(), table.rows(rows), strict=True):  # type: ignore[arg-type]
        numbers.append(number)
        begun.append(encode.begin(raw))
        size += sum(len(value) for value in raw.values() if isinstance(value, str))
        if len(begun) == CHUNK_ROWS or size > CHUNK_CHARACTERS:
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
