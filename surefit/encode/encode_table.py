"""Rows of a Table to a Store: encoded, checked row by row, and counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import Field
from surefit.batches.loading import by_thread
from surefit.data.cache import cache_folder
from surefit.data.table import Table
from surefit.encode.casting import cast_columns, row_length, second_sequence
from surefit.encode.drop_reasons import DropReason
from surefit.encode.encode_key import encode_key
from surefit.encode.encoded_row import Encoded, EncodedRow, EncodeRow, RowFaultError, Skip
from surefit.encode.encoder import Encoder
from surefit.encode.store import Store, new_store
from surefit.encode.tally import Faults, Tally
from surefit.encode.text.batch_tokenizing import finish, finished, tokenise_rows
from surefit.errors import FindingError
from surefit.progress import Progress

if TYPE_CHECKING:
    from surefit.encode.augment.augmented_copies import Views

CHUNK_ROWS = 256
CHUNK_CHARACTERS = 4_000_000
"""Rows that are tokenised together, at most; and characters of their text."""
MARK_SECONDS = 10.0
"""How often it is noted how far encoding is."""


def encode_rows(
    table: Table,
    rows: npt.NDArray[np.int64],
    *,
    encode: EncodeRow,
    fields: Mapping[str, Field],
    count_targets: Callable[[Mapping[str, Any]], int],
    encoder: Encoder,
    progress: Progress,
    stage: str,
    views: Views | None = None,
) -> Store:
    """Encode the given rows into a Store in the cache, or open the one that is there.

    With `views`, each row is followed by its further views, which are rows of the Store like any
    other. Faults of all rows are gathered, one Finding per kind with its first row, and raised
    together; then nothing is written. Where the process was killed, the next one goes on from the
    last mark it set.
    """
    code = (encode, count_targets, *(views.code() if views else ()))
    key = encode_key(table, rows, code, encoder, fields, views.state() if views else None)
    folder = cache_folder() / "encoded" / key
    if folder.exists():
        return Store(folder)
    faults = Faults(table, encoder)
    tally = Tally(Faults(table, encoder))
    notes: dict[str, Any] = {}
    second = second_sequence(fields)
    check = partial(check_encoded, encoder=encoder, fields=fields, count_targets=count_targets)

    def encode_view(row: Mapping[str, Any], extras: Mapping[str, Any]) -> EncodedRow | Skip:
        return check(finished(encode(row, encoder), encoder.tokenizer), extras)

    def begun(done: int) -> Iterator[tuple[Any, ...]]:
        for numbers, raws in _chunks(table, rows[done:]):
            read = [encoder.read(raw) for raw in raws]
            yield numbers, raws, read, [_begin(encode, row, encoder) for row in read]

    def tokenised(chunk: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        return zip(*chunk, tokenise_rows(chunk[-1], encoder.tokenizer), strict=True)

    with new_store(folder, fields, notes) as writer:
        done, marked = 0, time.monotonic()
        if writer.state is not None:
            done = writer.state["done"]
            tally.restore(writer.state["tally"])
            faults.restore(writer.state["faults"])
        for chunk in by_thread(begun(done), tokenised):  # which does not wait for Python
            progress(stage, done, len(rows))
            if time.monotonic() - marked > MARK_SECONDS:
                writer.mark({"done": done, "tally": tally.state(), "faults": faults.state()})
                marked = time.monotonic()
            for number, raw, row, encoded, tokens in chunk:
                done += 1
                try:
                    extras = {name: raw[name] for name in encoder.extras}
                    made = check(finish(encoded, tokens), extras)
                    if isinstance(made, Skip):
                        tally.drop_row(number, made)
                        continue
                    further = []
                    if views:
                        again = partial(encode_view, extras=extras)
                        further = list(views.further(row, number, made, again))
                except RowFaultError as fault:
                    faults.add(number, fault)
                    continue
                for view, each in tally.add_row(number, made, further):
                    length = row_length(each.columns)
                    writer.append(
                        each.columns,
                        source_row=number,
                        view=view,
                        num_targets=each.num_targets,
                        length=length,
                    )
                    tally.counts["tokens"] += length + (len(each.columns[second]) if second else 0)
        progress(stage, len(rows), len(rows))
        found = faults.findings()
        if found:
            raise FindingError(*found)
        notes |= tally.notes()
    return Store(folder)


def _chunks(
    table: Table, rows: npt.NDArray[np.int64]
) -> Iterator[tuple[list[int], list[dict[str, Any]]]]:
    """Numbers and rows, a few hundred at a time, or fewer where they are large."""
    numbers: list[int] = []
    raws: list[dict[str, Any]] = []
    size = 0
    for number, raw in zip(rows.tolist(), table.rows(rows), strict=True):  # type: ignore[arg-type]
        numbers.append(number)
        raws.append(raw)
        size += sum(len(value) for value in raw.values() if isinstance(value, str))
        if len(raws) == CHUNK_ROWS or size > CHUNK_CHARACTERS:
            yield numbers, raws
            numbers, raws, size = [], [], 0
    if raws:
        yield numbers, raws


def _begin(encode: EncodeRow, row: Mapping[str, Any], encoder: Encoder) -> Any:
    """What encoding gives of a row before its texts are tokenised, or the fault it raises."""
    try:
        return encode(row, encoder)
    except RowFaultError as fault:
        return fault


def check_encoded(
    encoded: Any,
    extras: Mapping[str, Any],
    *,
    encoder: Encoder,
    fields: Mapping[str, Field],
    count_targets: Callable[[Mapping[str, Any]], int],
) -> EncodedRow | Skip:
    """One row as the Store takes it; a Skip where nothing can be learned, or its fault raised."""
    if isinstance(encoded, Exception):
        raise encoded
    if isinstance(encoded, Skip):
        return encoded
    if not isinstance(encoded, Encoded):
        encoded = Encoded(encoded)
    columns = cast_columns({**encoded.columns, **extras}, fields, encoder.column_of)
    num_targets = count_targets(columns)
    if num_targets == 0:
        return Skip(reason_without_targets(fields))
    return EncodedRow(columns, num_targets, encoded.truncated, encoded.learns_eos, encoded.remarks)


def reason_without_targets(fields: Mapping[str, Field]) -> DropReason:
    """Why a row without targets is dropped: its tokens have no label, or it has no target."""
    labels = fields.get("labels")
    by_token = "input_ids" in fields and labels is not None and labels.rank > 0
    return DropReason.NO_LABELLED_TOKEN if by_token else DropReason.NO_TARGET


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
