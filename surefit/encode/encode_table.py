"""Rows of a Table to a Store: encoded, checked row by row, and counted."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.data.cache import fingerprint
from surefit.data.cache_entry import entry_folder, is_sound
from surefit.data.table import Table
from surefit.encode.casting import row_length, second_sequence
from surefit.encode.encode_key import encode_key
from surefit.encode.encoded_chunks import encoded_chunks
from surefit.encode.encoded_row import EncodedRow, RowFaultError, SkipRowError
from surefit.encode.room_in_cache import check_room
from surefit.encode.row_encoder import RowEncoder
from surefit.encode.store import Store, StoreWriter, new_store
from surefit.encode.tally import Faults, Tally
from surefit.errors import FindingError
from surefit.progress import Progress, silent

if TYPE_CHECKING:
    from surefit.encode.augment.augmented_copies import AugmentedCopies

MARK_SECONDS = 10.0
"""How often the progress of encoding is saved, for a process that resumes it."""


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
    is written. After a kill, the next process resumes from the last mark.
    """
    key = encode_key(table, rows, encode, copies)
    # The notes name the files of the rows, so that the same rows elsewhere are another entry.
    folder = entry_folder("encoded", fingerprint(key, table.place_key))
    if is_sound(folder):
        return Store(folder)
    check_room(table, rows, encode, copies)
    count = _Count(Faults(table, encode.encoder), Tally(Faults(table, encode.encoder)))
    notes: dict[str, Any] = {}

    with new_store(folder, encode.fields, notes, key) as writer:
        count.restore(writer.state)
        append = partial(_append, writer, count.tally, second_sequence(encode.fields))
        marked = time.monotonic()
        with encoded_chunks(encode, table, rows[count.done :], copies) as chunks:
            for chunk in chunks:
                progress(stage, count.done, len(rows))
                if time.monotonic() - marked > MARK_SECONDS:
                    writer.mark(count.state())
                    marked = time.monotonic()
                for number, made in chunk:
                    count.done += 1
                    if isinstance(made, SkipRowError):
                        count.tally.drop_row(number, made)
                    elif isinstance(made, RowFaultError):
                        count.faults.add(number, made)
                    else:
                        append(number, count.tally.add_row(number, *made))
        progress(stage, len(rows), len(rows))
        found = count.faults.findings()
        if found:
            raise FindingError(*found)
        notes |= count.tally.notes()
    return Store(folder)


@dataclass
class _Count:
    """How many rows are encoded, and what became of them; saved with every mark."""

    faults: Faults
    tally: Tally
    done: int = 0

    def state(self) -> dict[str, Any]:
        return {"done": self.done, "tally": self.tally.state(), "faults": self.faults.state()}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        if state is not None:
            self.done = state["done"]
            self.tally.restore(state["tally"])
            self.faults.restore(state["faults"])


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
