"""Batches of live rows: of a Dataset, read anew in each epoch; of a stream, window by window.

A window has as many rows as the plan was made with, encoded, and held in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from surefit.batches.field import NUM_ROWS, NUM_TARGETS, OWN
from surefit.batches.loading import to_batch
from surefit.data.forms import spread_columns
from surefit.data.python.live_rows import LiveRows, kept_randomness, seed_generators
from surefit.data.python.streams import Stream
from surefit.data.several_columns import join_columns
from surefit.data.table import Table
from surefit.errors import RunFailedError
from surefit.inputs.augment.array_augment import MIXED_FIELDS
from surefit.inputs.encoded_row import (
    EncodedRow,
    RowFaultError,
    describe_counts,
    phrase_of,
)
from surefit.inputs.row_encoder import row_length
from surefit.inputs.store import Store
from surefit.progress import Progress

if TYPE_CHECKING:
    from surefit.inputs.augment.array_augment import EpochRows
    from surefit.inputs.augment.augmented_copies import AugmentedCopies
    from surefit.pipeline.pipeline import Pipeline

DIVISOR = f"{OWN}divisor"
"""The column of a live batch that states what its loss is divided by."""
GIVE_ROWS = (
    "Let the Dataset give a row that can be trained on whenever it is read. Then resume the run."
)


def live_batch(
    pipeline: Pipeline, source: Store | EpochRows, rows: Any, epoch: int, device: Any
) -> dict[str, Any]:
    """Return rows as their Dataset gives them in this epoch, with what their loss is divided by."""
    prepare, live = pipeline.prepare, pipeline.live
    assert live is not None
    read = live.encoded(pipeline, source, rows, epoch)
    columns = _augmented(pipeline, source, rows, epoch, read)
    if prepare is not None:
        numbers = [(int(source.source_row[place]), int(source.copy[place])) for place in rows]
        columns = [prepare(row, epoch, *n) for row, n in zip(columns, numbers, strict=True)]
    fields = {**MIXED_FIELDS, **pipeline.fields}
    batch = to_batch(columns, fields, pipeline.collate_fn, device, pipeline.layout)
    count = sum(row.num_targets for row in read)
    counted = {NUM_TARGETS: count}
    if pipeline.collate_fn is not None:  # which may change the targets
        counted = {NUM_ROWS: len(read)}
    divisor = pipeline.divisor_of(
        count, lambda: np.concatenate([np.ravel(row.columns["labels"]) for row in read])
    )
    return {**batch, **counted, DIVISOR: divisor}


def _augmented(
    pipeline: Pipeline, source: Store | EpochRows, rows: Any, epoch: int, read: list[EncodedRow]
) -> list[Mapping[str, Any]]:
    """Return columns of rows that were read, changed as the source says; a partner is read, too."""
    known = {int(row): each.columns for row, each in zip(rows, read, strict=True)}
    if isinstance(source, Store):
        return [known[int(row)] for row in rows]

    def of(row: int) -> Mapping[str, Any]:
        if row not in known:
            assert pipeline.live is not None
            known[row] = pipeline.live.encoded(pipeline, source, [row], epoch)[0].columns
        return known[row]

    return [source.change(int(row), of) for row in rows]


@dataclass(frozen=True)
class ReadAnew:
    """The rows of a Dataset, read anew in each epoch."""

    live: LiveRows
    copies: AugmentedCopies | None = None
    """How augmented copies of a row are made, where the Store has some."""

    @property
    def row_seconds(self) -> float:
        """Return how long reading a row takes on average."""
        return self.live.row_seconds

    def encoded(
        self, pipeline: Pipeline, source: Store | EpochRows, rows: Any, epoch: int
    ) -> list[EncodedRow]:
        """Return rows of a Store as they are in this epoch (from 0)."""
        with kept_randomness():
            numbers = [(int(source.source_row[row]), int(source.copy[row])) for row in rows]
            return [self._read(pipeline, *number, epoch) for number in numbers]

    def _read(self, pipeline: Pipeline, number: int, copy: int, epoch: int) -> EncodedRow:
        """Read and encode a row, or a copy of it; raises where it cannot be trained on."""
        raw = _raw_row(pipeline, self.live.table(number, pipeline.seed, epoch + 1))
        where = f"row {number}, epoch {epoch + 1}"
        try:
            blocks = pipeline.row_encoder(raw)
            if self.copies is not None and copy:
                row, again = _encode_again(pipeline, raw)
                blocks = self.copies.encode_anew(row, (number, copy, epoch), blocks, again)
        except RowFaultError as fault:
            dropped = f"the row cannot be used ({phrase_of(fault.reason)})."
            what = dropped if fault.reason else fault.message
            raise RunFailedError(f"{where}: {what}", fault.fix or GIVE_ROWS) from None
        if len(blocks) != 1:
            raise RunFailedError(
                f"{where}: the row is longer than {pipeline.encoder.max_length} and would be "
                "split.",
                "Truncate such rows: --set overlong=truncate.",
            )
        return blocks[0]


def _raw_row(pipeline: Pipeline, table: Table) -> Mapping[str, Any]:
    """Return the only row of a Table as the Encoder reads it."""
    table = spread_columns(table, pipeline.task.role_names)
    return join_columns(table, pipeline.encoder.roles.values()).row(0)


def _encode_again(pipeline: Pipeline, raw: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return a row that was read, and the function that encodes augmented copies of it."""
    begun = pipeline.row_encoder.begin(raw)
    return begun.row, partial(pipeline.row_encoder.encode_read, extras=begun.extras)


class StreamEndedError(RunFailedError):
    """A stream has no more rows, and cannot be iterated again."""


@dataclass
class _Held:
    """The window in memory, and where those up to it began."""

    window: int = 0
    rows: list[EncodedRow] = field(default_factory=list)
    starts: list[list[int]] = field(default_factory=lambda: [[0, 0]])
    """Pass and row at which each window began; the first one is the plan's."""
    state: Any = None
    """The position that the stream saved before the window was read."""
    digest: str | None = None
    """What the window must be again, after a resume."""


@dataclass(frozen=True)
class StreamWindows:
    """The rows of a stream, window by window; window 0 is the training Store."""

    stream: Stream
    num_rows: int
    lengths: Any
    """Of the Store's rows: each window has its rows in the same order of lengths."""
    held_out: frozenset[int]
    """Rows of a pass that are validation rows."""
    files: tuple[str, ...] = ()
    """Columns of file paths, as a Table has them."""
    row_seconds: float = 0.0
    copies: AugmentedCopies | None = None
    """How augmented copies of a row are made, where the Store has some."""
    held: _Held = field(default_factory=_Held)
    notices: list[Callable[[str], None]] = field(default_factory=list)
    """Who hears of rows that are dropped."""

    def encoded(
        self, pipeline: Pipeline, source: Store | EpochRows, rows: Any, epoch: int
    ) -> list[EncodedRow]:
        """Return rows of a window, encoded."""
        if epoch == 0:
            stored = source if isinstance(source, Store) else source.stored
            counts = stored.num_targets
            found = zip(map(int, rows), stored.rows(rows), strict=True)
            return [EncodedRow(columns, int(counts[row]), 0, False) for row, columns in found]
        with kept_randomness():
            while self.held.window != epoch:
                if epoch < self.held.window:
                    raise RunFailedError(
                        f"Window {epoch} of the stream is needed again, and {self.held.window} is "
                        "read.",
                        "Resume the run.",
                    )
                self._read_next(pipeline)
        return [self.held.rows[int(row)] for row in rows]

    def position(self) -> dict[str, Any] | None:
        """Return where the window in memory began, as plain values."""
        held = self.held
        if not held.window:
            return None
        return {"starts": held.starts, "state": held.state, "digest": held.digest}

    def seek(self, pipeline: Pipeline, position: dict[str, Any], progress: Progress) -> None:
        """Read the window again in which a run was saved; it must be the same."""
        starts = [[int(each) for each in pair] for pair in position["starts"]]
        for state in dict.fromkeys((bool(position["state"]), False)):
            held = self.held
            held.window, held.starts = len(starts) - 2, starts[:-1]
            with kept_randomness():
                self.stream.seek(starts, position["state"] if state else None, progress)
                self._read_next(pipeline)
            if self.held.digest == position["digest"]:
                return
        raise RunFailedError(
            f"The stream {self.stream.name} gives other rows than before the run was saved.",
            "Let it give the same rows whenever it is iterated, or start a new run.",
        )

    def _read_next(self, pipeline: Pipeline) -> None:
        held, stream, dropped = self.held, self.stream, Counter[str]()
        cursor = stream.cursor
        state, window = stream.state(), held.window + 1
        starts = [*held.starts, [cursor.passes, cursor.number]]
        seed_generators(0, window)
        rows: list[EncodedRow] = []
        truncated, began = 0, cursor.passes
        while len(rows) < self.num_rows:
            try:
                number, table = stream.next()
            except StopIteration:
                self._begin_again(began, len(rows))
                continue
            if cursor.passes and number in self.held_out:
                continue
            try:
                raw = _raw_row(pipeline, replace(table, files=self.files))
                made, copies = pipeline.row_encoder(raw), list[EncodedRow]()
                if (
                    self.copies is not None
                ):  # those that cannot be used are left out, as in the plan
                    row, again = _encode_again(pipeline, raw)
                    for _, copy, _ in self.copies.encode(row, number, made, again, window):
                        copies += () if isinstance(copy, RowFaultError) else copy
            except RowFaultError as fault:
                if fault.reason:
                    dropped[fault.reason] += 1
                    continue
                message = f"row {number} of the stream: {fault.message}"
                raise fault.rule.error(message, row=number, fix=fault.fix) from None
            truncated += any(block.truncated for block in made)
            rows += [*made, *copies]
        rows = rows[: self.num_rows]  # the last row may have more copies than fit
        held.rows, held.digest = self._arranged(rows, pipeline), _digest(rows)
        held.window, held.starts, held.state = window, starts, state
        self._report(starts[-1][1], dropped, truncated)

    def _begin_again(self, began: int, num_rows: int) -> None:
        """Begin a new pass over the stream; raise if there is none, or no row in a whole one."""
        stream, cursor = self.stream, self.stream.cursor
        if not stream.again:
            raise StreamEndedError(
                f"The stream {stream.name} ended after {cursor.number:,} rows. It cannot be "
                f"iterated again, so training ends; its last {num_rows:,} rows, fewer than the "
                f"{self.num_rows:,} of a window, are not trained on.",
                "Pass an object that can be iterated again, such as a Dataset or a generator "
                "function, or use fewer --max-steps.",
            )
        if cursor.passes > began and not num_rows:
            raise RunFailedError(
                f"The stream {stream.name} gave no row that can be used in a whole pass.",
                "Look at its rows: surefit.inspect(list of them).",
            )
        stream.rewind(cursor.passes + 1)

    def _arranged(self, rows: list[EncodedRow], pipeline: Pipeline) -> list[EncodedRow]:
        """Return the rows in the order of lengths of the Store, so that its batches suit them."""
        lengths = [row_length(row.columns, pipeline.fields) for row in rows]
        placed: list[EncodedRow] = [rows[0]] * self.num_rows
        shortest = np.argsort(lengths, kind="stable")[: self.num_rows]
        for place, row in zip(np.argsort(self.lengths, kind="stable"), shortest, strict=True):
            placed[int(place)] = rows[int(row)]
        return placed

    def _report(self, first: int, dropped: Counter[str], truncated: int) -> None:
        lost = dropped.total()
        parts = [f"{lost:,} rows are dropped ({describe_counts(dropped)})"] if lost else []
        parts += [f"{truncated:,} rows are truncated"] if truncated else []
        for notice in self.notices if parts else ():
            notice(f"Stream, from row {first:,} on: {', '.join(parts)}.")


def _digest(rows: list[EncodedRow]) -> str:
    digest = xxhash.xxh3_64()
    for row in rows:
        digest.update(row.content())
    return digest.hexdigest()
