"""Rows of a Table to a Store: encoded, checked row by row, and counted."""

from __future__ import annotations

import inspect
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit import __version__
from surefit.data.cache import cache_folder, entry_folder, fingerprint, hash_bytes, lock_entry
from surefit.data.cache_entry import is_sound
from surefit.data.table import Table
from surefit.disk_space import free_bytes
from surefit.encode.casting import row_length, second_sequence
from surefit.encode.encoded_chunks import encoded_chunks
from surefit.encode.encoded_row import EncodedRow, RowFaultError, SkipRowError
from surefit.encode.row_encoder import RowEncoder
from surefit.encode.store import Store, StoreWriter, new_store
from surefit.encode.tally import Faults, Tally
from surefit.encode.text.batch_tokenizing import plain_backend
from surefit.errors import FindingError
from surefit.findings import rule
from surefit.gigabytes import show_size
from surefit.progress import Progress, silent

if TYPE_CHECKING:
    from surefit.encode.augment.augmented_copies import AugmentedCopies


FORMAT = 3
"""Changes with what a Store holds and notes about its rows."""


def encode_key(
    table: Table,
    rows: npt.NDArray[np.int64],
    encode: RowEncoder,
    copies: AugmentedCopies | None = None,
) -> str:
    """A key that changes with everything that the encoded rows depend on."""
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
    """A key that changes with the code that encodes rows, so that no stale cache is read.

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
                    if isinstance(made, SkipRowError):
                        tally.drop_row(number, made)
                    elif isinstance(made, RowFaultError):
                        faults.add(number, made)
                    else:
                        append(number, tally.add_row(number, *made))
        progress(len(rows), len(rows))
        found = faults.findings()
        if found:
            raise FindingError(*found)
        notes |= tally.notes()


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
            value = row[name]
            if isinstance(value, str):
                yield value
            elif isinstance(value, list) and all(isinstance(part, str) for part in value):
                yield " ".join(value)
