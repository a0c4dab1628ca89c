"""Rows of a Table to a Store: encoded, checked row by row, and counted."""

from __future__ import annotations

import inspect
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit import __version__
from surefit.data.cache import cache_folder, entry_folder, fingerprint, hash_bytes, lock_entry
from surefit.data.cache_entry import is_sound
from surefit.data.cell_files import FILE_ROLES
from surefit.data.column_types import is_array
from surefit.data.table import Table
from surefit.errors import FindingError
from surefit.findings import rule
from surefit.forked_map import forked_map, num_children
from surefit.gigabytes import free_bytes, show_size
from surefit.inputs.batch_tokenizing import Tokenized, plain_backend
from surefit.inputs.encoded_row import EncodedRow, RowFaultError
from surefit.inputs.row_encoder import Begun, RowEncoder, row_length, second_sequence
from surefit.inputs.store import Store, StoreWriter, new_store
from surefit.inputs.tally import Faults, Tally
from surefit.progress import Progress, silent

if TYPE_CHECKING:
    from surefit.inputs.augment.augmented_copies import AugmentedCopies


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

Copy = tuple[int, tuple[EncodedRow, ...] | RowFaultError, bool]
Made = tuple[tuple[EncodedRow, ...], list[Copy]] | RowFaultError
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
    columns = (encode.encoder.roles.get(role) for role in FILE_ROLES)
    kinds = [table.column_type(name) for name in columns if name in table.columns]
    decodes = any(not is_array(kind) for kind in kinds)  # which takes far longer than text
    work = len(rest) * (TEXTS_PER_FILE if decodes else 1)
    is_shared = encode.encoder.tokenizer is not None or decodes
    own_code = copies is not None and copies.function is not None
    is_ours = encode.encode.__module__.startswith("surefit.") and not own_code
    children = num_children(work, WORK_BYTES) if is_shared and is_ours else 0
    row_bytes = table.arrow.nbytes // max(1, table.num_rows)
    most = min(most, CHUNK_FILES) if decodes else most
    size = max(1, min(most, CHUNK_CHARACTERS // max(1, row_bytes)))
    parts = (rest[start : start + size] for start in range(0, len(rest), size))
    encode_part = partial(_encode_chunk, encode, table, copies)
    if not children:
        yield chain([first], map(encode_part, parts))
        return
    with forked_map(encode_part, parts, children) as chunks:
        yield chain([first], chunks)


def num_in_chunk(sizes: Iterable[int]) -> int:
    """Return how many rows are encoded together, if encoded rows have these sizes in bytes.

    >>> num_in_chunk([600_000, 0]), num_in_chunk([12_000]), num_in_chunk([])
    (6, 256, 256)
    """
    return max(1, min(CHUNK_ROWS, CHUNK_BYTES // max(1, *sizes, 1)))


def _num_bytes(encoded: tuple[int, Made]) -> int:
    """Return the size of an encoded row and its augmented copies; 0 for one that is dropped."""
    made = encoded[1]
    if isinstance(made, Exception):
        return 0
    copies = [blocks for _, blocks, _ in made[1] if not isinstance(blocks, Exception)]
    blocks = chain(made[0], *copies)
    return sum(value.nbytes for block in blocks for value in block.columns.values())


def _encode_chunk(
    encode: RowEncoder,
    table: Table,
    copies: AugmentedCopies | None,
    rows: npt.NDArray[np.int64],
) -> Chunk:
    chunk: Chunk = []
    for numbers, begun in _begun(encode, table, rows):
        made = zip(numbers, begun, encode.tokenize(begun), strict=True)
        chunk += [(number, _finish(encode, copies, number, row, own)) for number, row, own in made]
    return chunk


def _begun(
    encode: RowEncoder, table: Table, rows: npt.NDArray[np.int64]
) -> Iterator[tuple[list[int], list[Begun]]]:
    """Numbers and begun rows, fewer at a time where their texts are long."""
    numbers: list[int] = []
    begun: list[Begun] = []
    size = 0
    for number, raw in zip(rows.tolist(), table.rows(rows), strict=True):  # type: ignore[arg-type]
        numbers.append(number)
        begun.append(encode.begin(raw))
        texts = begun[-1].encoding.texts if begun[-1].encoding else ()
        size += sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts)
        if size > CHUNK_CHARACTERS:
            yield numbers, begun
            numbers, begun, size = [], [], 0
    if begun:
        yield numbers, begun


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
    except RowFaultError as failure:
        return failure


FORMAT = 5
"""Changes with what a Store holds and notes about its rows."""


def encode_key(
    table: Table,
    rows: npt.NDArray[np.int64],
    encode: RowEncoder,
    copies: AugmentedCopies | None = None,
) -> str:
    """Return a key that changes with everything that the encoded rows depend on."""
    encoder = encode.encoder
    code = (encode.encode, encode.count_targets, *(copies.code() if copies else ()))
    return fingerprint(
        __version__,
        FORMAT,
        table.key,
        hash_bytes(rows.tobytes()),
        [code_key(function) for function in code],
        encoder.state(),
        tokenizer_key(encoder.tokenizer),
        {name: repr(spec) for name, spec in encode.fields.items()},
        {"copies": copies.state() if copies else None},
    )


def code_key(function: Callable[..., Any]) -> str:
    """Return a key that changes with the code that encodes rows, so that no stale cache is read.

    Simple values that a function closes over count as its code. Without source, every key is new.
    """
    try:
        source = inspect.getsource(sys.modules.get(function.__module__) or function)
        closed_over = inspect.getclosurevars(function).nonlocals
        plain = {k: v for k, v in closed_over.items() if isinstance(v, int | float | str | tuple)}
        return fingerprint(function.__qualname__, source, plain)
    except (AttributeError, OSError, TypeError):
        return uuid.uuid4().hex


def tokenizer_key(tokenizer: Any) -> str:
    if tokenizer is None:
        return ""
    backend = plain_backend(tokenizer)
    content = repr(tokenizer) if backend is None else hash_bytes(backend.to_str().encode())
    return fingerprint(content, tokenizer.pad_token_id, tokenizer.eos_token_id)


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
    """Return mean size of these rows in a Store; rows that are dropped or faulty take nothing."""
    total = 0
    for raw in table.rows(rows.tolist()):
        try:
            made = encode(raw)
        except RowFaultError:  # counted and reported when they are encoded
            continue
        for row in made:
            values = sum(value.nbytes + COLUMN_BYTES for value in row.columns.values())
            total += ROW_BYTES + values
    return total / len(rows)


def encode_rows(
    table: Table,
    rows: npt.NDArray[np.int64],
    encode: RowEncoder,
    copies: AugmentedCopies | None = None,
    progress: Progress = silent,
    stage: str = "encoding rows",
) -> Store:
    """Encode the given rows into a Store in the cache, or open the one that is there.

    A row that is split is several rows of the Store, one per block. With `copies`, each row is
    followed by its augmented copies, which are rows of the Store like any other. The faults of all
    rows are collected, one Finding per kind with its first row, and raised together; then nothing
    is written. Another process that encodes the same rows is waited for.
    """
    key = encode_key(table, rows, encode, copies)
    # The notes name the files of the rows, so that the same rows elsewhere are another entry.
    folder = entry_folder("encoded", fingerprint(key, table.place_key))
    if is_sound(folder):
        return Store(folder)
    with lock_entry(folder):
        if not is_sound(folder):
            check_room(table, rows, encode, copies)
            _write(folder, key, table, rows, encode, copies, partial(progress, stage))
    return Store(folder)


def _write(
    folder: Path,
    key: str,
    table: Table,
    rows: npt.NDArray[np.int64],
    encode: RowEncoder,
    copies: AugmentedCopies | None,
    progress: Callable[[int, int], None],
) -> None:
    """Encode rows, and write them as the entry of a key."""
    faults, tally = Faults(table, encode.encoder), Tally(Faults(table, encode.encoder))
    notes: dict[str, Any] = {}
    done = 0
    with new_store(folder, encode.fields, notes, key) as writer:
        append = partial(_append, writer, tally, second_sequence(encode.fields))
        with encoded_chunks(encode, table, rows, copies) as chunks:
            for chunk in chunks:
                progress(done, len(rows))
                done += len(chunk)
                for number, made in chunk:
                    if not isinstance(made, RowFaultError):
                        append(number, tally.add_row(number, *made))
                    elif made.reason:
                        tally.drop_row(number, made)
                    else:
                        faults.add(number, made)
        progress(len(rows), len(rows))
        found = faults.findings()
        if found:
            raise FindingError(*found)
        notes |= tally.notes()
        if table.mixed:
            notes["sources"] = table.mixed


def _append(
    writer: StoreWriter,
    tally: Tally,
    second: str | None,
    number: int,
    blocks: list[tuple[int, EncodedRow]],
) -> None:
    """Write the blocks of a row and of its copies, and count their tokens."""
    for copy, row in blocks:
        length = row_length(row.columns, writer.fields)
        writer.append(
            row.columns, source_row=number, copy=copy, num_targets=row.num_targets, length=length
        )
        tally.counts["tokens"] += length + (len(row.columns[second]) if second else 0)


def collect_texts(
    table: Table, rows: Sequence[int], columns: Iterable[str], limit: int = 20_000
) -> Iterable[str]:
    """Text of the given columns of up to `limit` rows, for making a tokenizer."""
    chosen = list(columns)
    for row in table.rows(rows[:limit]):
        for name in chosen:
            value = row.get(name)  # a form of other rows or files
            if isinstance(value, str):
                yield value
            elif isinstance(value, list) and all(isinstance(part, str) for part in value):
                yield " ".join(value)
